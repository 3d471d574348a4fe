"""The bundled tiny model: its drawn world, its digits, its training and its evaluation."""
