"""What a network still gets right after units were deleted, one at a time or several."""
