"""Classify series by their shape in a second, and see how sure the classifier is."""

import matplotlib.pyplot as plt
import numpy as np

from lagwise import LagClassifier

rng = np.random.default_rng(0)
time = np.arange(200)


def series(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Chirps that rise or fall, in noise, shifted at random: (count, channels, length), and their classes."""
    rises = np.arange(count) % 2 == 0
    frequency = np.where(rises[:, None], 0.1 + time / 1000, 0.3 - time / 1000)
    waves = np.sin(np.cumsum(frequency, axis=1) + rng.uniform(0, 6, (count, 1)))
    return (waves + rng.normal(scale=1.2, size=waves.shape))[:, None], np.where(rises, "rising", "falling")


classifier = LagClassifier().fit(*series(60))
x, y = series(300)
sure = classifier.predict_proba(x)[:, list(classifier.classes_).index("rising")]

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for offset, name in enumerate(classifier.classes_):
    left.plot(time, x[y == name][0, 0] + 5 * offset, linewidth=1, label=name)
    right.hist(sure[y == name], bins=np.linspace(0, 1, 21), alpha=0.6, label=name)
left.set(title="a series of each class", xlabel="sample", yticks=[])
right.set(
    title=f"300 new series, accuracy {classifier.score(x, y):.2f}", xlabel="probability of rising", ylabel="series"
)
right.legend(frameon=False)
figure.savefig("classify_series.png", dpi=110)
