//! Open Inference Protocol with binary tensors: split batches, forms of answers, malformed requests.

use hyper::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Answered, JSON_LENGTH, Received, Script, Server, Setup, status},
    oip::{INFER, servers},
};

/// The JSON and the binary tensors of a body.
fn divided(headers: &hyper::HeaderMap, body: &[u8]) -> (Value, Vec<u8>) {
    let length = headers.get(JSON_LENGTH).map(|value| value.to_str().unwrap().parse().unwrap());
    let (json, tail) = body.split_at(length.unwrap_or(body.len()));
    (serde_json::from_slice(json).unwrap_or(Value::Null), tail.to_vec())
}

fn texts(texts: &[&str]) -> Vec<u8> {
    let text =
        |text: &&str| [&u32::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat();
    texts.iter().flat_map(text).collect()
}

/// A request with a binary `x` [rows, 1], a JSON `mask`, and a binary `text`.
fn request(firsts: &[f32], outputs: &Value) -> (Value, Vec<u8>) {
    let names: Vec<String> = (0..firsts.len()).map(|row| "t".repeat(row)).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let x: Vec<u8> = firsts.iter().flat_map(|first| first.to_le_bytes()).collect();
    let tail = [x.clone(), texts(&names)].concat();
    let json = json!({"inputs": [
        {"name": "x", "shape": [firsts.len(), 1], "datatype": "FP32", "parameters": {"binary_data_size": x.len()}},
        {"name": "mask", "shape": [firsts.len()], "datatype": "BOOL", "data": vec![true; firsts.len()]},
        {"name": "text", "shape": [firsts.len()], "datatype": "BYTES", "parameters": {"binary_data_size": tail.len() - x.len()}},
    ], "outputs": outputs});
    (json, tail)
}

/// A strict model: `p` from `x`, and `text` as it came with a prefix, each in the form asked for.
fn model(name: &str, received: &Received, score: impl Fn(f32) -> f32) -> Script {
    if received.path != format!("/v2/models/{name}/infer") {
        return status(404, json!({"error": "no such model"}));
    }
    let bad = |why: String| status(400, json!({"error": why}));
    let (json, tail) = divided(&received.headers, &received.body);
    let size = |input: usize| json["inputs"][input]["parameters"]["binary_data_size"].as_u64();
    let (Some(x), Some(text)) = (size(0), size(2)) else { return bad(format!("no sizes: {json}")) };
    let rows = json["inputs"][0]["shape"][0].as_u64().unwrap();
    let is_sound = x + text == tail.len() as u64
        && x == 4 * rows
        && json["inputs"][1]["data"].as_array().map(Vec::len) == usize::try_from(rows).ok()
        && json["inputs"][2]["shape"] == json!([rows]);
    if !is_sound {
        return bad(format!("{rows} rows, {x} and {text} bytes do not fit {} bytes", tail.len()));
    }
    let (x, mut text) = tail.split_at(usize::try_from(x).unwrap());
    let scores: Vec<f32> = x
        .chunks(4)
        .map(|bytes| score(f32::from_le_bytes(bytes.try_into().unwrap())))
        .flat_map(|score| [score, 1.0 - score])
        .collect();
    let mut answered: Vec<String> = Vec::new();
    while let Some((length, rest)) = text.split_first_chunk::<4>() {
        let (one, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        answered.push(format!("{name}-{}", std::str::from_utf8(one).unwrap()));
        text = rest;
    }
    if answered.len() as u64 != rows {
        return bad(format!("{} texts for {rows} rows", answered.len()));
    }
    let is_binary = |output: &Value| output["parameters"]["binary_data"] == true;
    let mut pieces = Vec::new();
    let outputs: Vec<Value> = json["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|asked| {
            let (datatype, shape, data, bytes) = if asked["name"] == "p" {
                let bytes = scores.iter().flat_map(|score| score.to_le_bytes()).collect::<Vec<_>>();
                ("FP32", json!([rows, 2]), json!(scores), bytes)
            } else {
                let list: Vec<&str> = answered.iter().map(|text| &**text).collect();
                ("BYTES", json!([rows]), json!(answered), texts(&list))
            };
            let mut output = json!({"name": asked["name"], "datatype": datatype, "shape": shape});
            if is_binary(asked) {
                output["parameters"] = json!({"binary_data_size": bytes.len()});
                pieces.extend(bytes);
            } else {
                output["data"] = data;
            }
            output
        })
        .collect();
    let text = json!({"model_name": name, "outputs": outputs}).to_string();
    if json["outputs"].as_array().unwrap().iter().any(is_binary) {
        return Script::Binary(text.len(), [text.into_bytes(), pieces].concat());
    }
    crate::harness::ok(text)
}

async fn setup(changes: Value) -> (Setup, Server, Server) {
    let (edge, cloud, mut config) = servers().await;
    edge.become_script(|request| model("small", request, |score| score));
    cloud.become_script(|request| model("big", request, |_| 0.0));
    crate::harness::merge(&mut config, changes);
    (Setup::start(edge.address, None, config).await, edge, cloud)
}

async fn post(setup: &Setup, (json, tail): &(Value, Vec<u8>)) -> Answered {
    let json = json.to_string();
    let headers =
        [(JSON_LENGTH, &*json.len().to_string()), ("content-type", "application/octet-stream")];
    setup.send(Method::POST, INFER, &headers, [json.as_bytes(), tail].concat()).await
}

fn asked(p: bool, text: bool) -> Value {
    json!([{"name": "p", "parameters": {"binary_data": p}}, {"name": "text", "parameters": {"binary_data": text}}])
}

#[tokio::test]
async fn hard_rows_of_binary_batches_are_put_back_in_the_form_asked_for() {
    let (setup, edge, cloud) = setup(json!({})).await;
    for (p, text) in [(true, true), (true, false), (false, true), (false, false)] {
        edge.become_script(|request| model("small", request, |score| score));
        cloud.become_script(|request| model("big", request, |_| 0.0));
        let body = request(&[0.875, 0.5, 0.9375, 0.625], &asked(p, text));
        let answer = post(&setup, &body).await;
        let (json, tail) = divided(&answer.headers, &answer.body);
        assert_eq!(answer.decision(), ("edge,cloud,edge,cloud", "easy,hard,easy,hard"), "{json}");
        let sent = divided(&cloud.received()[0].headers, &cloud.received()[0].body);
        let (mut expected, mut data) = request(&[0.5, 0.625], &asked(p, text));
        expected["inputs"][2]["parameters"]["binary_data_size"] = json!(12);
        data.truncate(8);
        data.extend(texts(&["t", "ttt"]));
        assert_eq!(sent, (expected, data));
        let scores = [0.875_f32, 0.125, 0.0, 1.0, 0.9375, 0.0625, 0.0, 1.0];
        let names = ["small-", "big-t", "small-tt", "big-ttt"];
        let mut rest = tail;
        if p {
            let bytes: Vec<u8> = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
            assert_eq!(rest.drain(..32).collect::<Vec<_>>(), bytes);
            assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 32);
        } else {
            assert_eq!(json["outputs"][0]["data"], json!(scores));
        }
        if text {
            assert_eq!(rest, texts(&names));
        } else {
            assert_eq!((json["outputs"][1]["data"].clone(), rest.len()), (json!(names), 0));
        }
        assert_eq!(json["parameters"]["neptune_answered_by"], "edge,cloud,edge,cloud");
    }
}

#[tokio::test]
async fn easy_binary_answer_is_the_edges_byte_for_byte() {
    let (setup, edge, cloud) = setup(json!({})).await;
    let body = request(&[0.9, 0.95], &asked(true, true));
    let answer = post(&setup, &body).await;
    assert_eq!(answer.decision(), ("edge", "easy"));
    let Script::Binary(length, expected) = model("small", &edge.received()[0], |score| score)
    else {
        panic!("the edge answers in binary");
    };
    assert_eq!((answer.header(JSON_LENGTH), &*answer.body), (&*length.to_string(), &*expected));
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    assert_eq!(divided(&edge.received()[0].headers, &edge.received()[0].body), body);
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn output_that_only_the_gateway_asks_for_is_removed_from_a_binary_answer() {
    let (setup, edge, _cloud) = setup(json!({"hardExample": {"output": "p"}})).await;
    let text = json!([{"name": "text", "parameters": {"binary_data": true}}]);
    for (firsts, names, decision) in [
        ([0.9, 0.95], ["small-", "small-t"], "easy"),
        ([0.9, 0.5], ["small-", "big-t"], "easy,hard"),
    ] {
        let answer = post(&setup, &request(&firsts, &text)).await;
        let (json, tail) = divided(&answer.headers, &answer.body);
        assert_eq!((answer.decision().1, tail), (decision, texts(&names)));
        assert_eq!(json["outputs"].as_array().unwrap().len(), 1);
    }
    let (json, _) = divided(&edge.received()[0].headers, &edge.received()[0].body);
    assert_eq!(json["outputs"][1], json!({"name": "p"}));
}

#[tokio::test]
async fn binary_request_is_answered_by_the_cloud_while_the_edge_is_down() {
    let (setup, edge, _cloud) = setup(json!({})).await;
    edge.become_script(|_| status(503, "loading"));
    let answer = post(&setup, &request(&[0.9], &asked(true, true))).await;
    assert_eq!(answer.decision(), ("cloud", "edge-down"));
    let (_, tail) = divided(&answer.headers, &answer.body);
    assert_eq!(tail, [&[0, 0, 0, 0, 0, 0, 128, 63], &*texts(&["big-"])].concat());
}

#[tokio::test]
async fn malformed_binary_requests_are_refused_and_raw_ones_pass() {
    let (setup, edge, cloud) = setup(json!({})).await;
    let (json, tail) = request(&[0.5, 0.6], &asked(true, true));
    let json_text = json.to_string();
    let send = async |length: &str, body: Vec<u8>| {
        setup.send(Method::POST, INFER, &[(JSON_LENGTH, length)], body).await
    };
    let whole = [json_text.as_bytes(), &tail].concat();
    let long = [&*whole, b"x"].concat();
    let end = (whole.len() + 1).to_string();
    let fits = json_text.len().to_string();
    for (length, body, message) in [
        (
            &*end,
            whole.clone(),
            format!(
                "Inference-Header-Content-Length is {end}, but the body has {} bytes",
                whole.len()
            ),
        ),
        (
            "ten",
            whole.clone(),
            "Inference-Header-Content-Length \"ten\" is not a number of bytes".to_owned(),
        ),
        (
            &*fits,
            long,
            format!(
                "the inputs have {} bytes of binary data, but {} bytes follow the JSON of the body",
                tail.len(),
                tail.len() + 1
            ),
        ),
        (
            &*fits,
            whole[..whole.len() - 1].to_vec(),
            "input \"text\" has a binary_data_size of 9, but 8 bytes of the body are left"
                .to_owned(),
        ),
    ] {
        let answer = send(length, body).await;
        assert_eq!((answer.status.as_u16(), answer.error()), (400, message));
    }
    assert!(edge.received().is_empty());
    edge.become_script(|_| crate::harness::ok("{}"));
    let raw = send("0", vec![1, 2, 3]).await;
    assert_eq!((raw.status.as_u16(), raw.decision()), (200, ("edge", "unjudged")));
    assert_eq!(edge.received()[0].body, [1, 2, 3][..]);
    assert_eq!(edge.received()[0].headers[JSON_LENGTH], "0");
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn shadows_of_binary_batches_are_compared() {
    let (setup, _edge, cloud) = setup(json!({"hardExample": {"shadowRatio": 1}})).await;
    // The cloud answers the second class: both rows disagree.
    assert_eq!(
        post(&setup, &request(&[0.9, 0.95], &asked(true, false))).await.decision().1,
        "easy"
    );
    setup.until("two shadows", |status| status["samples"]["shadow"] == 2).await;
    assert_eq!(
        (&setup.status().await["samples"]["agreed"], cloud.received().len()),
        (&json!(0), 1)
    );
}
