"""What an instruction costs: `cost_of(instruction, target)`, from named parameters that `assumptions` lists."""

from .costs import Cost, cost_of, table_of
from .parameters import PARAMETERS, Parameter, Values, assumptions, parameter_table, values_for
from .transfers import DMA_ENGINES, Transfer, hbm_bytes, transfer_of

__all__ = [
    "DMA_ENGINES", "PARAMETERS", "Cost", "Parameter", "Transfer", "Values", "assumptions", "cost_of", "hbm_bytes",
    "parameter_table", "table_of", "transfer_of", "values_for",
]
