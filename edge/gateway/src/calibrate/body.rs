//! The bodies of the requests for labelled samples. Pure.

use serde_json::{Number, Value, json};

use super::samples::{Question, Row};
use crate::{config::Protocol, protocol::json::Object};

/// The one input of a model, as its metadata describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    name: String,
    datatype: String,
    /// The shape of one sample. A dimension of 0 or less may have any size.
    shape: Vec<i64>,
}

impl Input {
    /// The one input in the metadata of a model.
    ///
    /// # Errors
    /// There is another number of inputs, or they are not described.
    pub fn of_metadata(metadata: &[u8]) -> Result<Self, String> {
        let unreadable = || "its metadata does not describe inputs".to_owned();
        let object = Object::parse(metadata).map_err(|_| unreadable())?;
        let inputs: Vec<Object<'_>> = object.get("inputs").ok_or_else(unreadable)?;
        let [input] = &inputs[..] else {
            return Err(format!("it has {} inputs instead of one", inputs.len()));
        };
        let text = |name| input.get::<String>(name).ok_or_else(unreadable);
        let shape: Vec<i64> = input.get("shape").ok_or_else(unreadable)?;
        let shape = shape.get(1..).ok_or_else(unreadable)?.to_vec();
        let (name, datatype) = (text("name")?, text("datatype")?);
        if datatype == "BYTES" {
            return Err(format!("its input {name:?} takes texts, and the samples are numbers"));
        }
        Ok(Self { name, datatype, shape })
    }
}

/// The shape of one sample: the given one, that of the model, or a list.
///
/// # Errors
/// The numbers of a sample do not fill it.
pub fn shape(given: &[usize], input: Option<&Input>, numbers: usize) -> Result<Vec<usize>, String> {
    let fits = |shape: &[usize]| {
        shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)) == Some(numbers)
    };
    if !given.is_empty() {
        let error = || format!("a sample has {numbers} numbers, and --shape is {given:?}");
        return if fits(given) { Ok(given.to_vec()) } else { Err(error()) };
    }
    let Some(input) = input else { return Ok(vec![numbers]) };
    let known = |size: &i64| usize::try_from(*size).ok().filter(|size| *size > 0);
    let product: usize = input.shape.iter().filter_map(known).product();
    // One size that the model leaves open is what the others leave.
    let open = numbers.checked_div(product).unwrap_or(0);
    let shape: Vec<usize> = input.shape.iter().map(|size| known(size).unwrap_or(open)).collect();
    if fits(&shape) {
        return Ok(shape);
    }
    let (name, expected) = (&input.name, &input.shape);
    Err(format!(
        "a sample has {numbers} numbers, and input {name:?} takes {expected:?}; check --label-column, or give --shape"
    ))
}

/// A request with these rows.
pub fn batch(protocol: Protocol, input: Option<&Input>, rows: &[Row], shape: &[usize]) -> Vec<u8> {
    let body = if let Some(input) = input.filter(|_| protocol == Protocol::Oip) {
        let mut sizes = vec![rows.len()];
        sizes.extend(shape);
        let data: Vec<Value> =
            rows.iter().flat_map(|row| &row.numbers).map(|n| number(*n)).collect();
        json!({"inputs": [
            {"name": input.name, "datatype": input.datatype, "shape": sizes, "data": data},
        ]})
    } else {
        let rows: Vec<Value> = rows.iter().map(|row| nested(&row.numbers, shape)).collect();
        json!({"instances": rows})
    };
    body.to_string().into_bytes()
}

/// The numbers of a sample as lists of lists.
fn nested(numbers: &[f64], shape: &[usize]) -> Value {
    match shape {
        [] => numbers.first().map_or(Value::Null, |n| number(*n)),
        [_] => numbers.iter().map(|n| number(*n)).collect(),
        [_, rest @ ..] => {
            let size = rest.iter().product::<usize>().max(1);
            numbers.chunks(size).map(|part| nested(part, rest)).collect()
        }
    }
}

/// Whole numbers without a fraction: servers take them for every type.
fn number(number: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
    let whole = (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    whole.map_or_else(|| Number::from_f64(number).map_or(Value::Null, Value::Number), Value::from)
}

/// A request with a question. The same question gets the same answer where servers permit it.
pub fn chat(model: Option<&str>, question: &Question, max_tokens: u32) -> Vec<u8> {
    let mut body =
        json!({"messages": question.messages, "max_tokens": max_tokens, "temperature": 0});
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    body.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn input(shape: &str) -> Result<Input, String> {
        let metadata =
            format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{shape}}}]}}"#);
        Input::of_metadata(metadata.as_bytes())
    }

    #[test]
    fn shape_is_given_or_of_the_model_or_a_list() {
        for (given, model, numbers, expected) in [
            (&[][..], None, 4, Ok(vec![4])),
            (&[2, 2], None, 4, Ok(vec![2, 2])),
            (&[], Some("[-1,64]"), 64, Ok(vec![64])),
            (&[], Some("[-1,8,-1]"), 64, Ok(vec![8, 8])),
            (&[2, 2], Some("[-1,4]"), 4, Ok(vec![2, 2])),
            (&[3], None, 4, Err("a sample has 4 numbers, and --shape is [3]")),
            (&[], Some("[-1,64]"), 63, Err("a sample has 63 numbers, and input \"x\" takes [64]")),
            (&[], Some("[-1,8,-1]"), 63, Err("takes [8, -1]; check --label-column")),
            (&[usize::MAX, 2], None, 4, Err("--shape is")),
        ] {
            let model = model.map(|shape| input(shape).unwrap());
            let result = shape(given, model.as_ref(), numbers);
            match expected {
                Ok(expected) => assert_eq!(result.unwrap(), expected),
                Err(text) => assert!(result.clone().unwrap_err().contains(text), "{result:?}"),
            }
        }
    }

    #[test]
    fn metadata_that_does_not_fit_is_explained() {
        for (metadata, text) in [
            ("[]", "its metadata does not describe inputs"),
            (r#"{"inputs":[]}"#, "it has 0 inputs instead of one"),
            (r#"{"inputs":[{"name":"x","datatype":"BYTES","shape":[-1,1]}]}"#, "takes texts"),
            (r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[]}]}"#, "does not describe"),
        ] {
            let error = Input::of_metadata(metadata.as_bytes()).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn bodies_are_those_of_the_protocols() {
        let rows = [Row { numbers: vec![1.0, 0.5, -3.0, 1e300], label: 0 }];
        let text = |body: Vec<u8>| String::from_utf8(body).unwrap();
        assert_eq!(
            text(batch(Protocol::Tfserving, None, &rows, &[2, 2])),
            r#"{"instances":[[[1,0.5],[-3,1e+300]]]}"#
        );
        assert_eq!(
            text(batch(Protocol::Tfserving, None, &[Row { numbers: vec![2.0], label: 0 }], &[])),
            r#"{"instances":[2]}"#
        );
        let input = input("[-1,4]").unwrap();
        assert_eq!(
            text(batch(Protocol::Oip, Some(&input), &rows, &[4])),
            r#"{"inputs":[{"data":[1,0.5,-3,1e+300],"datatype":"FP32","name":"x","shape":[1,4]}]}"#
        );
        let question = Question { messages: json!([]), answers: Vec::new() };
        assert_eq!(
            text(chat(Some("m"), &question, 8)),
            r#"{"max_tokens":8,"messages":[],"model":"m","temperature":0}"#
        );
    }
}
