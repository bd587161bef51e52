"""What a picture of the world shows, and whether its sentence is true of it."""
