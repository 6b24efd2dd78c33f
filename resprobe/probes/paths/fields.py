"""What the results of paths hold."""

from resprobe.results.fields import BASELINE, Field, Fields

# Norms are those of the gradient of one image's loss, per unit of the normalised input.
_NORM = "nat"
_LENGTH = ("path_length",)
_STAGE = ("stage", "stage_length")

PATHS = Fields(
    variables={
        "coherent_grad_norm": Field("norm of the sum of all paths of this length", _LENGTH, "float", _NORM),
        "coherent_grad_norm_sem": Field("standard error of coherent_grad_norm over images", _LENGTH, "float", _NORM),
        "full_grad_norm": Field("norm of the gradient", (), "float", _NORM),
        "full_grad_norm_sem": Field("standard error of full_grad_norm over images", (), "float", _NORM),
        "completeness_error": Field("largest difference of the sum over lengths from the gradient", (), "float", "1"),
        "grad_share": Field("share of the sum of coherent norms", _LENGTH, "float", "1"),
        "path_share": Field("share of all paths", _LENGTH, "float", "1"),
        "effective_length_mean": Field("mean length, weighted by coherent_grad_norm", (), "float", "1"),
        "effective_length_low": Field("length up to which 5 % of the norms lie", (), "float", "1"),
        "effective_length_high": Field("length up to which 95 % of the norms lie", (), "float", "1"),
        "effective_path_share": Field("share of all paths that have an effective length", (), "float", "1"),
        "path_grad_rms": Field("root-mean-square norm of a single path", _LENGTH, "float", _NORM, required=False),
        "path_grad_rms_sem": Field(
            "standard error of path_grad_rms over repeats", _LENGTH, "float", _NORM, required=False
        ),
        "path_grad_mean": Field("mean norm of a single path, sampled", _LENGTH, "float", _NORM, required=False),
        "path_grad_mean_sem": Field(
            "standard error of path_grad_mean over samples", _LENGTH, "float", _NORM, required=False
        ),
        "num_samples": Field("sampled paths of each length", (), "int", required=False),
        "stage_grad_norm": Field(
            "norm of the sum of all paths by branches of one stage", _STAGE, "float", _NORM, required=False
        ),
        "stage_grad_norm_sem": Field(
            "standard error of stage_grad_norm over images", _STAGE, "float", _NORM, required=False
        ),
        "stage_num_paths": Field("ways through the stage", _STAGE, "count", required=False),
        **BASELINE,
    },
    coords={
        "path_length": Field("residual branches taken", _LENGTH, "int"),
        "num_paths": Field("number of paths of this length", _LENGTH, "count"),
        "length_in_layers": Field("mean number of weight layers on these branches", _LENGTH, "float", "1"),
        "stage": Field("stage of the network", ("stage",), "int", required=False),
        "stage_length": Field("residual branches taken in the stage", ("stage_length",), "int", required=False),
    },
)
