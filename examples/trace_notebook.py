# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # A decode as a table
# This notebook plots when each position of an answer is unmasked and how confident the model is at that step. Open it
# with `jupytext --to ipynb examples/trace_notebook.py`, or run it as a program:
# `BUNDLE=out/bundle python examples/trace_notebook.py`. It needs pandas and `lopa-export[plot]`.

# %%
import os

import pandas as pd

from lopa import Decoder, Step, step_table

question = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"
steps: list[Step] = []
with Decoder.open(os.environ.get("BUNDLE", "out/bundle")) as decoder:
    for _ in decoder.stream(question, branches=4, max_new_tokens=96, on_step=steps.append):
        pass
table = pd.DataFrame(step_table(steps))
table.head()

# %% [markdown]
# Each row is a token that one branch proposed for one masked position in one step. `unmasked` marks the tokens that the
# step kept.

# %%
kept = table[table["unmasked"]]
per_step = kept.groupby("step").agg(tokens=("token", "count"), lowest_probability=("probability", "min"))
print(per_step)
print(f"{kept['token'].count()} tokens in {len(steps)} steps")

# %%
axes = kept.plot.scatter("position", "step", c="probability", colormap="viridis", title="When positions are unmasked")
axes.figure.savefig(os.environ.get("PLOT", "out/trace.png"))
