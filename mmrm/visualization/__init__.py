"""What all pictures and tables share."""
