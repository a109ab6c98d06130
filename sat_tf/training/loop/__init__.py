"""The training itself: a run, its stages, and the devices they run on."""
