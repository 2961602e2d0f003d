"""Trains the edge's and the cloud's model of digits with scikit-learn, from the data of examples/digits.

usage: train.py TRAIN_CSV FOLDER      writes FOLDER/small.joblib and FOLDER/big.joblib
"""

import pathlib
import sys

import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression

data, folder = sys.argv[1], pathlib.Path(sys.argv[2])
rows = np.loadtxt(data, delimiter=",")
pixels, labels = rows[:, :-1], rows[:, -1].astype(int)
# Few rows and much regularisation: the small model is uncertain about a good part of the digits.
joblib.dump(LogisticRegression(max_iter=60, C=0.0005).fit(pixels[:300], labels[:300]), folder / "small.joblib")
joblib.dump(LogisticRegression(max_iter=2000).fit(pixels, labels), folder / "big.joblib")
