_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# The three files are yours to bring: docs/regularisers.md says where they are published.
model = dict(
    data_preprocessor=dict(
        batch_augments=dict(
            augments=dict(
                type='StyleCutMix',
                encoder='{{$MMRM_DATA:data}}/adain/vgg_normalised.pth',
                decoder='{{$MMRM_DATA:data}}/adain/decoder.pth',
                distances='{{$MMRM_DATA:data}}/adain/styleDistanceMatrix10.pt',
                r=0.7,
                delta=1.0),
            probs=0.5)))
