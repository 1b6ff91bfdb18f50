"""What a data set holds before anything is trained on it: copies, labels, distances between domains."""
