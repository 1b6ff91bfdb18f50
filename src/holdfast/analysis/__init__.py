"""What a trained run is looked at for: how far its domains lie apart, how they spread, how its memory is used."""
