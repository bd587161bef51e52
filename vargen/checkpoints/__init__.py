"""Files of models: found, checked, and read into networks; imports point from reading to checking to finding."""
