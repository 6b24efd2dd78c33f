"""What the results of curvature hold."""

from resprobe.results.fields import Field, Fields

_BLOCK = ("block", "rank")

# Per unit of the weights, which have none. What a small block has no more eigenvalues for is NaN.
CURVATURE = Fields(
    variables={
        "eigenvalue": Field("eigenvalue of the Hessian, from the largest down", ("rank",), "float", "nat"),
        "residual": Field("norm of H v - lambda v", ("rank",), "float", "nat"),
        "converged": Field("residual within the tolerance", ("rank",), "bool"),
        "lowest_eigenvalue": Field("smallest eigenvalue of the Hessian", (), "float", "nat"),
        "lowest_residual": Field("norm of H v - lambda v of the smallest", (), "float", "nat"),
        "lowest_converged": Field("residual of the smallest within the tolerance", (), "bool"),
        "trace": Field("trace of the Hessian", (), "float", "nat"),
        "trace_sem": Field("standard error of the trace", (), "float", "nat"),
        "density": Field("density of the eigenvalues", ("eigenvalue_grid",), "float", "1/nat"),
        "loss": Field("mean loss of all images", (), "float", "nat"),
        "grad_norm": Field("norm of the gradient of the mean loss", (), "float", "nat"),
        "num_params": Field("trainable parameters, the rows of the Hessian", (), "int"),
        "block_eigenvalue": Field("eigenvalue of the block, from the largest down", _BLOCK, "float", "nat", False),
        "block_residual": Field("norm of H v - lambda v in the block", _BLOCK, "float", "nat", False),
        "block_converged": Field("residual in the block within the tolerance", _BLOCK, "bool", "", False),
        "block_trace": Field("trace of the block", ("block",), "float", "nat", False),
        "block_trace_sem": Field("standard error of the block's trace", ("block",), "float", "nat", False),
        "block_num_params": Field("trainable parameters of the block", ("block",), "int", "", False),
    },
    coords={
        "rank": Field("place of the eigenvalue, counted from the largest", ("rank",), "int"),
        "eigenvalue_grid": Field("eigenvalue", ("eigenvalue_grid",), "float", "nat"),
        "block": Field("stem, stages or units, head: a diagonal block", ("block",), "text", required=False),
    },
)
