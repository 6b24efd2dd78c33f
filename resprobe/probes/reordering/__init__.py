"""What a network still gets right after units have changed places."""
