//! Rows as JSON and binary, forms of answers, malformed requests.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "tests")]

use hyper::{HeaderMap, header::HeaderName};
use neptune_cascade::rows::Selection;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::protocol::{Payload, json::Object, numbers};

const REQUEST: &str = r#"{"id":"7","inputs":[
    {"name":"pixels","shape":[3,2],"datatype":"FP32","data":[1.0,2.0,3.0,4.0,5.0,6.0]},
    {"name":"mask","shape":[3,1],"datatype":"BOOL","data":[[true],[false],[true]]}],"extra":1.50}"#;

fn parsed(payload: &Payload) -> Value {
    serde_json::from_slice(payload.json()).unwrap()
}

fn payload(text: impl ToString) -> Payload {
    Payload::from(text.to_string().into_bytes())
}

fn answer(name: &str, data: &Value, columns: usize) -> String {
    let rows = data.as_array().unwrap().len();
    let rows = if data[0].is_array() { rows } else { rows / columns };
    json!({"model_name": "m", "outputs": [
        {"name": name, "datatype": "FP32", "shape": [rows, columns], "data": data}]})
    .to_string()
}

#[test]
fn hard_rows_are_uploaded_with_all_inputs_and_unknown_fields() {
    let body = payload(REQUEST);
    let request = Request::parse(&body, None).unwrap().unwrap();
    assert_eq!((request.rows(), request.edge_body()), (3, None));
    let body = request.cloud_body(&Selection::new(&[true, false, true])).unwrap();
    assert_eq!(
        parsed(&body),
        json!({"id": "7", "inputs": [
            {"name": "pixels", "shape": [2, 2], "datatype": "FP32", "data": [1.0, 2.0, 5.0, 6.0]},
            {"name": "mask", "shape": [2, 1], "datatype": "BOOL", "data": [[true], [true]]}],
            "extra": 1.5})
    );
    assert!(
        String::from_utf8(body.body.to_vec()).unwrap().contains("\"extra\":1.50"),
        "the text survives"
    );
}

#[test]
fn rows_are_put_back_flat_or_nested() {
    let selection = Selection::new(&[false, true, false]);
    for cloud in [json!([9, 9]), json!([[9, 9]])] {
        for edge in [json!([1, 2, 3, 4, 5, 6]), json!([[1, 2], [3, 4], [5, 6]])] {
            let (edge, cloud) = (answer("p", &edge, 2), answer("p", &cloud, 2));
            let (edge, cloud) = (payload(edge), payload(cloud));
            let edge = Answer::parse(&edge).unwrap();
            let cloud = Answer::parse(&cloud).unwrap();
            let merged = edge.merge(&cloud, &selection, "edge,cloud,edge", None).unwrap();
            let merged = Object::parse(merged.json()).unwrap();
            let outputs: Vec<Object<'_>> = merged.get("outputs").unwrap();
            let data = numbers::flat(outputs[0].raw("data").unwrap()).unwrap();
            assert_eq!(data, [1.0, 2.0, 9.0, 9.0, 5.0, 6.0]);
            let parameters: Value = merged.get("parameters").unwrap();
            assert_eq!(parameters, json!({"neptune_answered_by": "edge,cloud,edge"}));
        }
    }
}

#[test]
fn outputs_that_differ_are_named() {
    let selection = Selection::new(&[false, true, false]);
    let edge = payload(answer("probabilities", &json!([1, 2, 3, 4, 5, 6]), 2));
    let edge = Answer::parse(&edge).unwrap();
    for cloud in
        [answer("scores", &json!([1, 2, 3]), 3), answer("probabilities", &json!([1, 2, 3]), 3)]
    {
        let cloud = payload(cloud);
        let cloud = Answer::parse(&cloud).unwrap();
        let error = edge.merge(&cloud, &selection, "", None).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "outputs of the two models differ (edge probabilities FP32 [-1,2], cloud "
            ),
            "{error}"
        );
        assert!(
            error.ends_with("FP32 [-1,3]): a request is answered by one of them as a whole"),
            "{error}"
        );
    }
    let short = payload(answer("probabilities", &json!([1, 2, 3, 4]), 2));
    let short = Answer::parse(&short).unwrap();
    let error = edge.merge(&short, &selection, "", None).unwrap_err().to_string();
    assert_eq!(error, "the cloud answered 2 rows instead of 1");
}

#[test]
fn metadata_shows_whether_outputs_can_be_mixed() {
    let metadata = |name: &str, datatype: &str, columns: i64| {
        json!({"outputs": [{"name": name, "datatype": datatype, "shape": [-1, columns]}]})
            .to_string()
    };
    let edge = metadata("p", "FP32", 10);
    let edge = Object::parse(edge.as_bytes()).unwrap();
    for (cloud, is_alike) in [
        (metadata("p", "FP32", 10), true),
        (metadata("p", "FP32", -1), true),
        (metadata("p", "FP32", 100), false),
        (metadata("p", "FP64", 10), false),
        (metadata("q", "FP32", 10), false),
        ("{}".to_owned(), true),
        (r#"{"outputs":[]}"#.to_owned(), false),
    ] {
        let cloud_object = Object::parse(cloud.as_bytes()).unwrap();
        assert_eq!(difference(&edge, &cloud_object).is_none(), is_alike, "{cloud}");
    }
}

#[test]
fn scores_are_those_of_the_named_output_or_the_first_that_fits() {
    let text = json!({"outputs": [
        {"name": "label", "datatype": "INT64", "shape": [3], "data": [1, 0, 1]},
        {"name": "probabilities", "datatype": "FP64", "shape": [3, 2], "data": [0.1, 0.9, 0.5, 0.5, null, 1]}]});
    let text = payload(text);
    let answer = Answer::parse(&text).unwrap();
    for (output, expected) in [
        (None, [true, true, false]),
        (Some("probabilities"), [true, true, false]),
        (Some("label"), [false, false, false]),
        (Some("other"), [false, false, false]),
    ] {
        let rule =
            crate::config::HardExample::default().rule(crate::config::Protocol::Oip).unwrap();
        let signals = answer.scores(output, 3).signals(&rule, || 0.0);
        let judged: Vec<bool> = signals.iter().map(Result::is_ok).collect();
        assert_eq!(judged, expected, "{output:?}");
    }
}

#[test]
fn output_that_the_client_did_not_ask_for_is_asked_for_and_removed() {
    let body = br#"{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}],"outputs":[{"name":"label"}]}"#;
    let body = Payload::from(body.to_vec());
    let request = Request::parse(&body, Some("probabilities")).unwrap().unwrap();
    let edge = parsed(&request.edge_body().unwrap());
    assert_eq!(edge["outputs"], json!([{"name": "label"}, {"name": "probabilities"}]));
    let cloud = parsed(&request.cloud_body(&Selection::new(&[true])).unwrap());
    assert_eq!(cloud["outputs"], edge["outputs"]);
    let answer = payload(r#"{"outputs":[{"name":"label"},{"name":"probabilities"}]}"#);
    let answer = Answer::parse(&answer).unwrap();
    let stripped = parsed(&answer.stripped(request.added().unwrap()).unwrap());
    assert_eq!(stripped["outputs"], json!([{"name": "label"}]));
    let request = Request::parse(&body, Some("label")).unwrap().unwrap();
    assert_eq!((request.edge_body(), request.added()), (None, None));
}

#[test]
fn unequal_inputs_are_refused_and_other_bodies_left_to_the_server() {
    let body = br#"{"inputs":[{"name":"pixels","shape":[10,2]},{"name":"mask","shape":[9]}]}"#;
    assert_eq!(
        Request::parse(&Payload::from(body.to_vec()), None).unwrap_err().to_string(),
        "input \"pixels\" has 10 rows, \"mask\" has 9: they have to be equal"
    );
    for body in ["", "[]", "{}", r#"{"inputs":[]}"#, r#"{"inputs":[{"name":"x"}]}"#] {
        assert!(Request::parse(&payload(body), None).unwrap().is_none(), "{body}");
    }
}

/// JSON with binary tensors after it.
fn binary(json: &Value, tail: &[u8]) -> Payload {
    Payload::assembled(json.to_string().into_bytes(), [tail], true)
}

fn input(name: &str, datatype: &str, shape: &[i64], size: usize) -> Value {
    json!({"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}})
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn binary_and_json_inputs_of_one_request_are_split_together() {
    let texts = b"\x03\0\0\0one\0\0\0\0\x05\0\0\0three";
    let body = json!({"id": "7", "inputs": [
        input("x", "FP32", &[3, 1], 12),
        {"name": "mask", "datatype": "BOOL", "shape": [3], "data": [true, false, true]},
        input("text", "BYTES", &[3], texts.len())],
        "outputs": [{"name": "p", "parameters": {"binary_data": true}}]});
    let tail = [floats(&[1.0, 2.0, 3.0]), texts.to_vec()].concat();
    let body = binary(&body, &tail);
    let request = Request::parse(&body, Some("q")).unwrap().unwrap();
    assert_eq!(request.rows(), 3);
    let part = request.cloud_body(&Selection::new(&[true, false, true])).unwrap();
    let outputs = json!([{"name": "p", "parameters": {"binary_data": true}}, {"name": "q"}]);
    assert_eq!(
        parsed(&part),
        json!({"id": "7", "inputs": [
        input("x", "FP32", &[2, 1], 8),
        {"name": "mask", "datatype": "BOOL", "shape": [2], "data": [true, true]},
        input("text", "BYTES", &[2], 16)], "outputs": outputs})
    );
    let expected = [floats(&[1.0, 3.0]), b"\x03\0\0\0one\x05\0\0\0three".to_vec()].concat();
    assert_eq!(part.tail(), expected);
    let edge = request.edge_body().unwrap();
    assert_eq!((&parsed(&edge)["outputs"], edge.tail()), (&outputs, &*tail));
}

#[test]
fn malformed_binary_request_is_refused_with_the_tensor_and_the_numbers() {
    let two = |size: usize| json!({"inputs": [input("a", "FP32", &[2, 1], 8), input("b", "FP32", &[2, 1], size)]});
    let both = json!({"inputs": [{"name": "a", "datatype": "BOOL", "shape": [1], "data": [true],
        "parameters": {"binary_data_size": 1}}]});
    let negative = json!({"inputs": [{"name": "a", "datatype": "BOOL", "shape": [1],
        "parameters": {"binary_data_size": -1}}]});
    let one =
        |datatype, shape: &[i64], size| json!({"inputs": [input("a", datatype, shape, size)]});
    let unequal = json!({"inputs": [input("a", "FP32", &[2], 8), input("b", "BOOL", &[1], 1)]});
    for (json, tail, message) in [
        (two(9), 16, "input \"b\" has a binary_data_size of 9, but 8 bytes of the body are left"),
        (
            two(8),
            17,
            "the inputs have 16 bytes of binary data, but 17 bytes follow the JSON of the body",
        ),
        (two(4), 12, "input \"b\": the data have length 4, but their shape requires 8"),
        (both, 1, "input \"a\" has data and a binary_data_size; give one of them"),
        (negative, 1, "input \"a\" has the binary_data_size -1, which is not a number of bytes"),
        (
            one("BYTES", &[1], 3),
            3,
            "input \"a\": the elements of a BYTES tensor do not match its shape and length",
        ),
        (
            one("BYTES", &[2], 4),
            4,
            "input \"a\": the elements of a BYTES tensor do not match its shape and length",
        ),
        (unequal, 9, "input \"a\" has 2 rows, \"b\" has 1: they have to be equal"),
    ] {
        let error = Request::parse(&binary(&json, &vec![0; tail]), None).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let claims = one("FP32", &[1 << 40, 0], 0);
    assert!(Request::parse(&binary(&claims, &[]), None).unwrap().is_none(), "rows without data");
    let claims = json!({"inputs": [input("a", "FP32", &[1], usize::MAX)]});
    assert!(Request::parse(&binary(&claims, &[]), None).is_err());
}

fn output(datatype: &str, shape: &[i64], data: Result<Value, usize>) -> Value {
    let mut output = json!({"name": "p", "datatype": datatype, "shape": shape});
    match data {
        Ok(data) => output["data"] = data,
        Err(size) => output["parameters"] = json!({"binary_data_size": size}),
    }
    json!({"model_name": "m", "model_version": "2", "outputs": [output]})
}

#[test]
fn merged_answer_keeps_the_form_of_the_edge() {
    let hard = Selection::new(&[false, true]);
    let edge_binary = binary(&output("FP32", &[2, 2], Err(16)), &floats(&[1.0, 2.0, 3.0, 4.0]));
    let edge_json = payload(output("FP32", &[2, 2], Ok(json!([[1.0, 2.0], [3.0, 4.0]]))));
    let cloud_binary = binary(&output("FP32", &[1, 2], Err(8)), &floats(&[8.0, 9.0]));
    let cloud_json = payload(output("FP32", &[1, 2], Ok(json!([[8.0, 9.0]]))));
    for cloud in [&cloud_binary, &cloud_json] {
        let cloud = Answer::parse(cloud).unwrap();
        let edge = Answer::parse(&edge_binary).unwrap();
        assert_eq!(edge.version().as_deref(), Some("2"));
        let merged = edge.merge(&cloud, &hard, "edge,cloud", None).unwrap();
        assert_eq!(merged.tail(), floats(&[1.0, 2.0, 8.0, 9.0]));
        let mut expected = output("FP32", &[2, 2], Err(16));
        expected["parameters"] = json!({"neptune_answered_by": "edge,cloud"});
        assert_eq!(parsed(&merged), expected);
        let edge = Answer::parse(&edge_json).unwrap();
        let merged = edge.merge(&cloud, &hard, "edge,cloud", None).unwrap();
        let data = parsed(&merged)["outputs"][0]["data"].to_string();
        let numbers: String = data.chars().filter(|c| !"[]".contains(*c)).collect();
        assert_eq!((&*numbers, merged.is_binary()), ("1.0,2.0,8.0,9.0", false));
    }
    let other = binary(&output("FP64", &[1, 2], Err(16)), &[0; 16]);
    let edge = Answer::parse(&edge_binary).unwrap();
    let error = edge.merge(&Answer::parse(&other).unwrap(), &hard, "", None).unwrap_err();
    assert!(error.to_string().contains("(edge p FP32 [-1,2], cloud p FP64 [-1,2])"), "{error}");
    for (size, tail) in [(16, 15), (16, 17)] {
        let broken = binary(&output("FP32", &[2, 2], Err(size)), &vec![0; tail]);
        assert!(Answer::parse(&broken).is_none());
    }
    let none = edge.stripped("p").unwrap();
    assert_eq!((&parsed(&none)["outputs"], none.tail()), (&json!([]), &b""[..]));
}

#[test]
fn scores_of_binary_outputs_are_read_in_every_type() {
    for (datatype, data) in [
        ("FP16", vec![0, 0x38, 0, 0x38, 0, 0x3c, 0, 0]),
        ("BF16", vec![0, 0x3f, 0, 0x3f, 0x80, 0x3f, 0, 0]),
        ("FP32", floats(&[0.5, 0.5, 1.0, 0.0])),
        ("FP64", [0.5_f64, 0.5, 1.0, 0.0].iter().flat_map(|n| n.to_le_bytes()).collect()),
    ] {
        let answer = binary(&output(datatype, &[2, 2], Err(data.len())), &data);
        let rule =
            crate::config::HardExample::default().rule(crate::config::Protocol::Oip).unwrap();
        let scores = Answer::parse(&answer).unwrap().scores(None, 2);
        assert_eq!(scores.signals(&rule, || 0.0), [Ok(0.5), Ok(1.0)], "{datatype}");
    }
}

/// A tensor of any type: its shape and its data.
pub fn any_tensor(rows: usize) -> impl Strategy<Value = (String, Vec<i64>, Vec<u8>)> {
    let types = vec![
        ("BOOL", 1),
        ("UINT8", 1),
        ("INT16", 2),
        ("FP16", 2),
        ("BF16", 2),
        ("FP32", 4),
        ("INT64", 8),
        ("FP64", 8),
        ("BYTES", 0),
    ];
    (prop::sample::select(types), prop::collection::vec(0_usize..4, 0..3)).prop_flat_map(
        move |((datatype, size), inner)| {
            let count = rows * inner.iter().product::<usize>();
            let shape = std::iter::once(rows).chain(inner).map(|n| i64::try_from(n).unwrap());
            let shape: Vec<i64> = shape.collect();
            let element =
                prop::collection::vec(any::<u8>(), if size == 0 { 0..5 } else { size..size + 1 });
            prop::collection::vec(element, count).prop_map(move |elements| {
                let mut data = Vec::new();
                for element in elements {
                    if datatype == "BYTES" {
                        data.extend(u32::try_from(element.len()).unwrap().to_le_bytes());
                    }
                    data.extend(element);
                }
                (datatype.to_owned(), shape.clone(), data)
            })
        },
    )
}

proptest! {
    #[test]
    fn rows_that_are_cut_out_and_put_back_are_the_original(
        (tensors, mask) in (0_usize..6).prop_flat_map(|rows| (
            prop::collection::vec(any_tensor(rows), 1..4),
            prop::collection::vec(any::<bool>(), rows),
        )),
    ) {
        let entries: Vec<Value> = tensors.iter().enumerate().map(|(index, (datatype, shape, data))| {
            input(&format!("t{index}"), datatype, shape, data.len())
        }).collect();
        let tail: Vec<u8> = tensors.iter().flat_map(|(_, _, data)| data.clone()).collect();
        let whole = binary(&json!({"inputs": entries}), &tail);
        let hard = Selection::new(&mask);
        let request = Request::parse(&whole, None).unwrap().unwrap();
        let part = request.cloud_body(&hard).unwrap();
        let sent = Request::parse(&part, None).unwrap().unwrap();
        prop_assert_eq!(sent.rows(), hard.chosen().len());
        // The servers answer what they got.
        let as_answer = |payload: &Payload| {
            let mut json = parsed(payload);
            json["outputs"] = json["inputs"].take();
            binary(&json, payload.tail())
        };
        let (edge, cloud) = (as_answer(&whole), as_answer(&part));
        let edge = Answer::parse(&edge).unwrap();
        let merged = edge.merge(&Answer::parse(&cloud).unwrap(), &hard, "x", None).unwrap();
        prop_assert_eq!(merged.tail(), tail);
        prop_assert_eq!(&parsed(&merged)["outputs"], &Value::from(entries));
    }

    #[test]
    fn no_binary_body_fails(
        data in prop::collection::vec(any::<u8>(), 0..40),
        sizes in prop::collection::vec(prop_oneof![0_i64..20, any::<i64>()], 1..3),
        shape in prop::collection::vec(prop_oneof![0_i64..5, any::<i64>()], 0..3),
        datatype in prop::sample::select(vec!["FP32", "BYTES", "BOOL", "FP16", "none"]),
        length in prop_oneof![0_usize..90, any::<usize>()],
        mask in prop::collection::vec(any::<bool>(), 0..5),
    ) {
        let tensors: Vec<Value> = sizes.iter().map(|size| json!({"name": "x", "datatype": datatype,
            "shape": shape, "parameters": {"binary_data_size": size}})).collect();
        let body = binary(&json!({"inputs": tensors, "outputs": tensors}), &data);
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("inference-header-content-length"), length.into(),
        )]);
        let cut = Payload::new(&headers, body.body.clone()).unwrap_or_default();
        let hard = Selection::new(&mask);
        for payload in [&body, &cut] {
            let answer = Answer::parse(payload);
            if let Some(answer) = &answer {
                let _ = (answer.scores(None, mask.len()), answer.stripped("x"));
                let _ = answer.merge(answer, &hard, "", Some("x"));
            }
            if let Ok(Some(request)) = Request::parse(payload, Some("y")) {
                let _ = (request.cloud_body(&hard), request.edge_body());
            }
        }
    }
}
