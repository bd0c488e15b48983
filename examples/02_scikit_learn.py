"""A logistic regression on 2 % of the rows, with the weights that make up for the rest."""

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recollect.integrations.sklearn import CoresetClassifier

X, y = make_classification(6000, n_features=20, n_informative=10, n_classes=4, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)

# In a pipeline, like any other estimator.
model = make_pipeline(StandardScaler(), CoresetClassifier(LogisticRegression(max_iter=1000), size=0.02))
model.fit(X_train, y_train)
chosen = model[-1]
print(
    f"kept {len(chosen.sample_indices_)} of {len(X_train)} rows, weights {chosen.sample_weight_.min():.0f} to "
    f"{chosen.sample_weight_.max():.0f}"
)
print(f"accuracy            {model.score(X_test, y_test):.3f}")

random = np.random.default_rng(0).choice(len(X_train), len(chosen.sample_indices_), replace=False)
plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X_train[random], y_train[random])
print(f"random rows         {plain.score(X_test, y_test):.3f}")
everything = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X_train, y_train)
print(f"all rows            {everything.score(X_test, y_test):.3f}")

# As data arrives: a memory inside decides anew what stays, and the estimator is fitted on that.
stream = CoresetClassifier(LogisticRegression(max_iter=1000), size=60)
for rows in np.array_split(np.argsort(X_train[:, 0]), 5):  # sorted, so that every part is unlike the others
    stream.partial_fit(X_train[rows], y_train[rows], classes=np.unique(y_train))
print(f"from a sorted stream {stream.score(X_test, y_test):.3f}, weights add up to {stream.sample_weight_.sum():.0f}")
