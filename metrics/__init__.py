"""Measuring pictures and decoding. Knows neither `vargen` nor `specdecode`; import from the modules."""
