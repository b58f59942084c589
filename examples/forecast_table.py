"""Forecast a series with two seasons, with intervals, from a closed form."""

import matplotlib.pyplot as plt
import numpy as np

from lagwise import LagForecaster

rng = np.random.default_rng(0)
hour = np.arange(24 * 70)
load = (
    10
    + 3 * np.sin(2 * np.pi * hour / 24)
    + 1.5 * np.sin(2 * np.pi * hour / 168)
    + rng.normal(scale=0.7, size=len(hour))
)
past, future = load[:-96], load[-96:]

forecaster = LagForecaster(horizon=96, look_back=336).fit(past)
forecast = forecaster.predict()
low, high = forecaster.predict_interval(coverage=0.9)

figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.plot(hour[-240:-96], past[-144:], color="0.4", linewidth=1, label="past")
axes.plot(hour[-96:], future, color="0.4", linewidth=1, linestyle=":", label="what came")
axes.plot(hour[-96:], forecast, label="forecast")
axes.fill_between(hour[-96:], low, high, alpha=0.25, label="90 % intervals")
inside = np.mean((future >= low) & (future <= high))
axes.set(title=f"{inside:.0%} of the 96 hours are inside", xlabel="hour")
axes.legend(frameon=False, ncols=4, loc="upper left", fontsize=8)
axes.set_ylim(top=axes.get_ylim()[1] + 2)
figure.savefig("forecast_table.png", dpi=110)
