"""What each family of models offers methods, one file a family: plays `vargen.methods.base.Components`."""
