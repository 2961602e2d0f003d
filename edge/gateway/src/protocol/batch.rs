//! A batch of either tensor protocol.

use neptune_cascade::rows::{RowsError, Selection};

use super::{json::Object, oip, scores::Scores, tfserving};
use crate::config::Protocol;

/// A request with a batch.
#[derive(Debug)]
pub enum Batch<'a> {
    /// Of the Open Inference Protocol.
    Oip(oip::Request<'a>),
    /// Of TensorFlow Serving.
    Tfserving(tfserving::Request<'a>),
}

/// Why answers cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// Names, types or shapes of the outputs differ.
    #[error(
        "outputs of the two models differ (edge {edge}, cloud {cloud}): a request is answered by one of them as a whole"
    )]
    Outputs {
        /// Those of the edge.
        edge: String,
        /// Those of the cloud.
        cloud: String,
    },
    /// An answer has no outputs.
    #[error("the answer of the {0} has no outputs")]
    Unreadable(&'static str),
    /// The numbers of rows do not fit.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

impl<'a> Batch<'a> {
    /// Reads a request; `None` if it cannot be judged.
    ///
    /// # Errors
    /// The inputs have different numbers of rows.
    pub fn parse(
        protocol: Protocol,
        body: &'a [u8],
        output: Option<&str>,
    ) -> Result<Option<Self>, RowsError> {
        Ok(match protocol {
            Protocol::Oip => oip::Request::parse(body, output)?.map(Self::Oip),
            Protocol::Tfserving => tfserving::Request::parse(body).map(Self::Tfserving),
            Protocol::Openai => None,
        })
    }

    /// The number of rows; `None` if it cannot be split.
    pub fn rows(&self) -> Option<usize> {
        match self {
            Self::Oip(request) => Some(request.rows()),
            Self::Tfserving(request) => request.rows(),
        }
    }

    /// The body for the edge, if it differs from the client's.
    pub fn edge_body(&self) -> Option<Vec<u8>> {
        match self {
            Self::Oip(request) => request.edge_body(),
            Self::Tfserving(_) => None,
        }
    }

    /// The body for the cloud, with the selected rows.
    ///
    /// # Errors
    /// The data do not fit their shape.
    pub fn cloud_body(&self, selection: &Selection) -> Result<Vec<u8>, RowsError> {
        match self {
            Self::Oip(request) => request.cloud_body(selection),
            Self::Tfserving(request) => request.cloud_body(selection),
        }
    }

    /// The scores in an answer that has as many rows.
    pub fn scores(&self, answer: &Object<'_>, output: Option<&str>, rows: usize) -> Scores {
        match self {
            Self::Oip(request) => request.scores(answer, output, rows),
            Self::Tfserving(request) => request.scores(answer, output, rows),
        }
    }

    /// The answer as the client asked for it; `None` if it is that already.
    pub fn stripped(&self, answer: &Object<'_>) -> Option<Vec<u8>> {
        match self {
            Self::Oip(request) => request.stripped(answer),
            Self::Tfserving(_) => None,
        }
    }

    /// The edge's answer with the selected rows of the cloud's.
    ///
    /// # Errors
    /// They cannot be mixed.
    pub fn merge(
        &self,
        edge: &Object<'_>,
        cloud: &Object<'_>,
        selection: &Selection,
        answered_by: &str,
    ) -> Result<Vec<u8>, MergeError> {
        match self {
            Self::Oip(request) => request.merge(edge, cloud, selection, answered_by),
            Self::Tfserving(request) => request.merge(edge, cloud, selection),
        }
    }

    /// Whether the body is an answer of the protocol.
    pub fn is_answer(&self, answer: &Object<'_>) -> bool {
        match self {
            Self::Oip(_) => answer.raw("outputs").is_some(),
            Self::Tfserving(_) => {
                answer.raw("predictions").is_some() || answer.raw("outputs").is_some()
            }
        }
    }
}
