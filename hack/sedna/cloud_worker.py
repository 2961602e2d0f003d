"""The cloud worker of the imitation: the big model behind FastAPI and uvicorn, which Sedna's library uses.

usage: cloud_worker.py SERVICE MODEL PORT
"""

import sys
from typing import List, Optional

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from digits import Model


class Request(BaseModel):
    """The samples."""

    data: List
    callback: Optional[str] = None


class Result(BaseModel):
    """One result per sample."""

    result: List


def main():
    """Serves until SIGTERM."""
    service, path, port = sys.argv[1:]
    model, app = Model(path), FastAPI()

    @app.get("/healthz")
    def healthz():
        return "ok"

    @app.post(f"/{service}/predict", response_model=Result)
    def predict(request: Request):
        rows = model.probabilities(request.data).tolist()
        return Result(result=[{"label": row.index(max(row)), "probabilities": row} for row in rows])

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", timeout_keep_alive=300)


if __name__ == "__main__":
    main()
