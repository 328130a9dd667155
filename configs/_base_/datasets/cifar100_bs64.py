_base_ = './cifar10_bs64.py'

dataset_type = 'RMCIFAR100'
data_root = '{{$MMRM_DATA:data}}/cifar100'

train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root))
test_dataloader = val_dataloader
