"""What the log of a training holds."""

from resprobe.results.fields import Field, Fields

TRAINING = Fields(
    variables={
        "train_loss": Field("mean loss on the training images", ("epoch",), "float", "nat"),
        "train_error": Field("error on the training images", ("epoch",), "float", "1"),
        "test_loss": Field("mean loss on the test images", ("epoch",), "float", "nat"),
        "test_error": Field("error on the test images", ("epoch",), "float", "1"),
        "learning_rate": Field("learning rate", ("epoch",), "float", "1"),
    },
    coords={"epoch": Field("epoch of training", ("epoch",), "int")},
)
