"""What each family of models offers methods, a file for each; plays `vargen.methods.base.Components`."""
