"""Reading a picture of the world, and judging whether its sentence is true of it."""
