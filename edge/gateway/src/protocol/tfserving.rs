//! REST of TensorFlow Serving: the row form is split by row, the column form is one sample.

use neptune_cascade::rows::{Rows, RowsError, Selection};
use serde_json::value::RawValue;

use super::{
    error::MergeError,
    json::{self, Object},
    numbers,
    scores::{Row, Scores},
};

/// The body of a request to `:predict`.
#[derive(Debug)]
pub struct Request<'a> {
    object: Object<'a>,
    /// The samples in the row form; `None` in the column form.
    instances: Option<Vec<&'a RawValue>>,
}

impl<'a> Request<'a> {
    /// Reads a request; `None` if it is neither form.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let object = Object::parse(body).ok()?;
        let instances = object.original("instances").and_then(numbers::elements);
        let is_column = instances.is_none() && object.raw("inputs").is_some();
        (instances.is_some() || is_column).then_some(Self { object, instances })
    }

    /// The number of rows; `None` in the column form.
    pub fn rows(&self) -> Option<usize> {
        self.instances.as_ref().map(Vec::len)
    }

    /// The body for the cloud, with the selected rows.
    ///
    /// # Errors
    /// The selection is one of another number of rows.
    pub fn cloud_body(&self, selection: &Selection) -> Result<Vec<u8>, RowsError> {
        let instances = self.instances.as_deref().unwrap_or_default();
        let selected = Rows::nested(instances.len()).select(instances, selection)?;
        let mut object = self.object.clone();
        object.set("instances", json::list(selected));
        Ok(object.to_vec())
    }

    /// The body as it came.
    pub fn whole(&self) -> Vec<u8> {
        self.object.to_vec()
    }

    /// The predictions of one row of an answer, or the whole answer.
    pub fn row_of(&self, answer: &Object<'_>, row: Option<usize>, rows: usize) -> Vec<u8> {
        let list = answer.raw("predictions").and_then(numbers::elements).unwrap_or_default();
        match row.filter(|_| list.len() == rows).and_then(|row| list.get(row)) {
            None => answer.to_vec(),
            Some(prediction) => {
                let mut one = answer.clone();
                one.set("predictions", json::list([*prediction]));
                one.to_vec()
            }
        }
    }

    /// The scores of an answer.
    pub fn scores(&self, answer: &Object<'_>, output: Option<&str>, rows: usize) -> Scores {
        let values = if self.instances.is_some() {
            answer.raw("predictions").and_then(numbers::elements)
        } else {
            answer.raw("outputs").and_then(|outputs| column(outputs, output))
        };
        let values = values.unwrap_or_default();
        if self.instances.is_some() && values.len() != rows {
            return Scores::missing(rows);
        }
        let is_row = self.instances.is_some();
        Scores::new(values.into_iter().map(|value| row(value, output, is_row)).collect())
    }

    /// The edge's answer with the selected rows of the cloud's.
    ///
    /// # Errors
    /// The predictions cannot be mixed.
    pub fn merge(
        &self,
        edge: &Object<'_>,
        cloud: &Object<'_>,
        selection: &Selection,
    ) -> Result<Vec<u8>, MergeError> {
        let list = |answer: &Object<'_>, side| {
            let list = answer.raw("predictions").and_then(numbers::elements);
            let texts =
                list.map(|list| list.into_iter().map(ToOwned::to_owned).collect::<Vec<_>>());
            texts.ok_or(MergeError::Unreadable(side))
        };
        let (edge_rows, cloud_rows) = (list(edge, "edge")?, list(cloud, "cloud")?);
        if let (Some(one), Some(other)) = (edge_rows.first(), cloud_rows.first()) {
            let (one, other) = (described(one), described(other));
            if one != other {
                return Err(MergeError::Outputs { edge: one, cloud: other });
            }
        }
        let merged = Rows::nested(edge_rows.len()).merge(
            &edge_rows,
            selection,
            &Rows::nested(cloud_rows.len()),
            &cloud_rows,
        )?;
        let mut answer = edge.clone();
        answer.set("predictions", json::list(merged.iter().map(|row| &**row)));
        Ok(answer.to_vec())
    }
}

/// The rows of the column form: a list, or an object of lists.
fn column<'a>(outputs: &'a RawValue, output: Option<&str>) -> Option<Vec<&'a RawValue>> {
    match Object::from_raw(outputs) {
        None => numbers::elements(outputs),
        Some(object) => {
            if let Some(name) = output {
                return numbers::elements(object.original(name)?);
            }
            let lists = object.names().filter_map(|name| object.original(name));
            lists
                .filter_map(numbers::elements)
                .find(|list| list.first().is_some_and(|row| fits(row)))
        }
    }
}

/// A prediction, or in the row form one of its named outputs.
fn row(value: &RawValue, output: Option<&str>, is_row: bool) -> Option<Row> {
    let object = Object::from_raw(value).filter(|_| is_row);
    let value = match &object {
        None => value,
        Some(object) => match output {
            Some(name) => object.raw(name)?,
            None => object.names().filter_map(|name| object.raw(name)).find(|value| fits(value))?,
        },
    };
    let numbers = numbers::flat(value)?;
    let elements = numbers::elements(value)?;
    let inner = elements.first().and_then(|first| numbers::elements(first));
    Some(Row { width: inner.map_or(numbers.len(), |inner| inner.len()), numbers })
}

/// Whether a value can be the scores of a row.
fn fits(value: &RawValue) -> bool {
    value.get().starts_with('[') && numbers::flat(value).is_some_and(|numbers| numbers.len() > 1)
}

/// Such as `probabilities [10] and label`.
fn described(prediction: &RawValue) -> String {
    let shape = |value: &RawValue| {
        let list = if value.get().starts_with('[') { numbers::elements(value) } else { None };
        list.map_or_else(String::new, |list| format!("[{}]", list.len()))
    };
    match Object::from_raw(prediction) {
        None => format!("predictions {}", shape(prediction)).trim_end().to_owned(),
        Some(object) => {
            let mut outputs: Vec<String> = object
                .names()
                .filter_map(|name| Some(format!("{name} {}", shape(object.raw(name)?))))
                .map(|output| output.trim_end().to_owned())
                .collect();
            outputs.sort();
            outputs.join(" and ")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{HardExample, Protocol};

    fn merged(edge: &str, cloud: &str, hard: &[bool]) -> Result<String, String> {
        let request = Request::parse(br#"{"instances":[1,2]}"#).unwrap();
        let (edge, cloud) =
            (Object::parse(edge.as_bytes()).unwrap(), Object::parse(cloud.as_bytes()).unwrap());
        let merged = request.merge(&edge, &cloud, &Selection::new(hard));
        merged.map(|bytes| String::from_utf8(bytes).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn hard_instances_are_uploaded_and_put_back() {
        let body = br#"{"signature_name":"s","instances":[{"x":[1.0]},{"x":[2.50]}]}"#;
        let request = Request::parse(body).unwrap();
        assert_eq!(request.rows(), Some(2));
        let cloud = request.cloud_body(&Selection::new(&[false, true])).unwrap();
        assert_eq!(cloud, br#"{"signature_name":"s","instances":[{"x":[2.50]}]}"#);
        assert_eq!(
            merged(
                r#"{"predictions":[[0.1,0.9],[0.5,0.5]]}"#,
                r#"{"predictions":[[1.0,0.0]]}"#,
                &[false, true]
            ),
            Ok(r#"{"predictions":[[0.1,0.9],[1.0,0.0]]}"#.to_owned())
        );
    }

    #[test]
    fn predictions_that_differ_are_named() {
        for (cloud, message) in [
            (
                r#"{"predictions":[[1,0,0]]}"#,
                "outputs of the two models differ (edge predictions [2], cloud predictions [3])",
            ),
            (r#"{"predictions":[{"p":[1,0]}]}"#, "edge predictions [2], cloud p [2]"),
            (r#"{"predictions":[[1,0],[0,1]]}"#, "the cloud answered 2 rows instead of 1"),
            (r#"{"error":"x"}"#, "the answer of the cloud has no outputs"),
        ] {
            let error = merged(r#"{"predictions":[[0.1,0.9],[0.5,0.5]]}"#, cloud, &[false, true])
                .unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn scores_are_found_in_every_form() {
        let rule = HardExample::default().rule(Protocol::Tfserving).unwrap();
        for (body, answer, output) in [
            (r#"{"instances":[1,2]}"#, r#"{"predictions":[[0.5,0.5],[0.0,1.0]]}"#, None),
            (
                r#"{"instances":[1,2]}"#,
                r#"{"predictions":[{"label":1,"p":[0.5,0.5]},{"label":1,"p":[0,1]}]}"#,
                None,
            ),
            (
                r#"{"instances":[1,2]}"#,
                r#"{"predictions":[{"q":[1,0],"p":[0.5,0.5]},{"q":[1,0],"p":[0,1]}]}"#,
                Some("p"),
            ),
            (r#"{"inputs":{"x":[1,2]}}"#, r#"{"outputs":[[0.5,0.5],[0,1]]}"#, None),
            (
                r#"{"inputs":{"x":[1,2]}}"#,
                r#"{"outputs":{"label":[1,1],"p":[[0.5,0.5],[0,1]]}}"#,
                None,
            ),
        ] {
            let request = Request::parse(body.as_bytes()).unwrap();
            let answer = Object::parse(answer.as_bytes()).unwrap();
            let signals = request.scores(&answer, output, 2).signals(&rule, || 0.0);
            assert_eq!(signals, [Ok(0.5), Ok(1.0)], "{body}");
        }
        let request = Request::parse(br#"{"instances":[1,2]}"#).unwrap();
        let answer = Object::parse(br#"{"predictions":[[0,1]]}"#).unwrap();
        assert!(request.scores(&answer, None, 2).signals(&rule, || 0.0).iter().all(Result::is_err));
        assert!(Request::parse(b"{}").is_none() && Request::parse(b"[]").is_none());
    }
}
