"""What the compiler remembers from run to run: networks it has compiled and programs it has proved."""
