//! The JSON of the Open Inference Protocol, version 2, for models of digits: one input `pixels`
//! (FP32, n x 64), two outputs `label` (INT64, n) and `probabilities` (FP64, n x 10). Pure.

use digits::{
    predict::{Classification, PredictRequest, PredictResponse},
    samples::Pixels,
};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value, json};

const INPUT: &str = "pixels";
const LABEL: &str = "label";
const PROBABILITIES: &str = "probabilities";
const PIXELS: usize = 64;
const CLASSES: usize = 10;

/// The body of `POST .../infer`. Other fields of the protocol are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub inputs: Vec<Input>,
    /// The requested outputs; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Wanted>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    pub shape: Vec<usize>,
    pub datatype: String,
    /// Numbers row by row, as nested lists or one flat list.
    pub data: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    pub name: String,
}

/// The response to an inference request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferResponse {
    pub model_name: String,
    /// The version that answered.
    #[serde(default)]
    pub model_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub outputs: Vec<Output>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub name: String,
    pub shape: Vec<usize>,
    pub datatype: String,
    /// The elements of the tensor, row by row.
    pub data: Vec<Number>,
}

impl InferRequest {
    pub fn new(images: &[Pixels]) -> Self {
        let input = Input {
            name: INPUT.to_owned(),
            shape: vec![images.len(), PIXELS],
            datatype: "FP32".to_owned(),
            data: images.iter().flatten().copied().collect(),
        };
        Self { id: None, inputs: vec![input], outputs: Vec::new() }
    }

    /// The samples of a request.
    ///
    /// # Errors
    /// The part that does not match this model.
    pub fn predict_request(&self) -> Result<PredictRequest, String> {
        let [input] = &self.inputs[..] else {
            return Err(format!("{} inputs; the model has one, {INPUT:?}", self.inputs.len()));
        };
        let Input { name, shape, datatype, data } = input;
        if name != INPUT {
            return Err(format!("input {name:?}; the model has one, {INPUT:?}"));
        }
        if datatype != "FP32" {
            return Err(format!("datatype {datatype:?} of {INPUT:?}; must be FP32"));
        }
        if let Some(unknown) =
            self.outputs.iter().find(|wanted| ![LABEL, PROBABILITIES].contains(&&*wanted.name))
        {
            return Err(format!(
                "output {:?}; the model has {LABEL:?} and {PROBABILITIES:?}",
                unknown.name
            ));
        }
        let mut numbers = Vec::new();
        flatten(data, &mut numbers)?;
        let samples = numbers.len() / PIXELS;
        if *shape != [samples, PIXELS] || numbers.len() % PIXELS != 0 {
            return Err(format!(
                "shape {shape:?} with {} numbers; must be [samples, {PIXELS}]",
                numbers.len()
            ));
        }
        Ok(PredictRequest { data: numbers.chunks(PIXELS).map(<[f64]>::to_vec).collect() })
    }

    /// The response of a version of a model.
    pub fn response(&self, model: &str, version: u64, answer: &PredictResponse) -> InferResponse {
        let results = &answer.result;
        let output = |name: &str, shape, datatype: &str, data| Output {
            name: name.to_owned(),
            shape,
            datatype: datatype.to_owned(),
            data,
        };
        let labels = results.iter().map(|classification| classification.label.into()).collect();
        let probabilities = results
            .iter()
            .flat_map(|classification| &classification.probabilities)
            .map(|p| Number::from_f64(*p).expect("a softmax is finite"));
        let mut outputs = vec![
            output(LABEL, vec![results.len()], "INT64", labels),
            output(PROBABILITIES, vec![results.len(), CLASSES], "FP64", probabilities.collect()),
        ];
        if !self.outputs.is_empty() {
            outputs.retain(|output| self.outputs.iter().any(|wanted| wanted.name == output.name));
        }
        InferResponse {
            model_name: model.to_owned(),
            model_version: Some(version.to_string()),
            id: self.id.clone(),
            outputs,
        }
    }
}

impl InferResponse {
    /// The results for this number of samples, in order.
    ///
    /// # Errors
    /// The part that is missing in the response.
    pub fn classifications(&self, samples: usize) -> Result<Vec<Classification>, String> {
        let probabilities = self.outputs.iter().find(|output| output.name == PROBABILITIES);
        let output = probabilities.ok_or_else(|| format!("no output {PROBABILITIES:?}"))?;
        if output.data.len() != samples * CLASSES {
            return Err(format!("{} probabilities for {samples} samples", output.data.len()));
        }
        let numbers = output.data.iter().map(|number| number.as_f64().unwrap_or_default());
        let probabilities: Vec<f64> = numbers.collect();
        let classify = |row: &[f64]| Classification {
            label: digits::model::label(row),
            probabilities: row.to_vec(),
        };
        Ok(probabilities.chunks(CLASSES).map(classify).collect())
    }
}

/// The protocol's model metadata.
pub fn metadata(model: &str, versions: &[String]) -> Value {
    let tensor =
        |name, datatype, shape: &[i32]| json!({"name": name, "datatype": datatype, "shape": shape});
    json!({
        "name": model,
        "versions": versions,
        "platform": "neptune-digits",
        "inputs": [tensor(INPUT, "FP32", &[-1, 64])],
        "outputs": [tensor(LABEL, "INT64", &[-1]), tensor(PROBABILITIES, "FP64", &[-1, 10])],
    })
}

fn flatten(data: &Value, numbers: &mut Vec<f64>) -> Result<(), String> {
    match data {
        Value::Array(items) => items.iter().try_for_each(|item| flatten(item, numbers)),
        Value::Number(number) => {
            numbers.push(number.as_f64().ok_or_else(|| format!("{number} is too large"))?);
            Ok(())
        }
        other => Err(format!("{other} in the data of {INPUT:?} is not a number")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Case = (fn(&mut Value), &'static str);

    fn request(change: impl FnOnce(&mut Value)) -> Result<PredictRequest, String> {
        let mut value = serde_json::to_value(InferRequest::new(&[[1.0; 64], [2.0; 64]])).unwrap();
        change(&mut value);
        serde_json::from_value::<InferRequest>(value).unwrap().predict_request()
    }

    #[test]
    fn samples_are_read_flat_and_nested() {
        let rows = vec![vec![1.0; 64], vec![2.0; 64]];
        assert_eq!(request(|_| ()).unwrap().data, rows);
        assert_eq!(request(|value| value["inputs"][0]["data"] = json!(rows)).unwrap().data, rows);
    }

    #[test]
    fn mismatches_with_the_model_are_named() {
        let cases: [Case; 7] = [
            (|v| v["inputs"] = json!([]), "0 inputs"),
            (|v| v["inputs"][0]["name"] = json!("x"), "input \"x\""),
            (|v| v["inputs"][0]["datatype"] = json!("BYTES"), "FP32"),
            (|v| v["inputs"][0]["shape"] = json!([1, 64]), "shape [1, 64] with 128 numbers"),
            (|v| v["inputs"][0]["data"] = json!([1.0, 2.0]), "with 2 numbers"),
            (|v| v["inputs"][0]["data"][5] = json!("ink"), "\"ink\""),
            (|v| v["outputs"] = json!([{"name": "boxes"}]), "output \"boxes\""),
        ];
        for (change, reason) in cases {
            let error = request(change).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn response_has_the_version_and_the_requested_outputs() {
        let probabilities: Vec<f64> = (0..10).map(|class| f64::from(class) / 45.0).collect();
        let answer = PredictResponse {
            result: vec![Classification { label: 9, probabilities: probabilities.clone() }],
        };
        let mut request = InferRequest::new(&[[0.0; 64]]);
        request.id = Some("42".to_owned());
        let response = request.response("digits", 4, &answer);
        let text = serde_json::to_string(&response).unwrap();
        assert!(text.contains(r#""datatype":"INT64","data":[9]"#), "{text}");
        assert!(text.contains(r#""model_version":"4","id":"42""#), "{text}");
        let read: InferResponse = serde_json::from_str(&text).unwrap();
        let classifications = read.classifications(1).unwrap();
        assert_eq!(
            (classifications[0].label, &classifications[0].probabilities),
            (9, &probabilities)
        );
        assert!(read.classifications(2).is_err());
        request.outputs = vec![Wanted { name: LABEL.to_owned() }];
        let response = request.response("digits", 4, &answer);
        assert_eq!(response.outputs.len(), 1);
        assert!(response.classifications(1).is_err());
    }
}
