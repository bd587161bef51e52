"""The Python behind `vargen caption` and `vargen bench --task video`."""
