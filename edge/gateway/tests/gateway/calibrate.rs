//! `calibrate`: with the model servers of `examples/three-resources` on the digits, and with scripted
//! language models.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use neptune_harness::{free_port, wait::eventually};
use serde_json::{Value, json};
use three_resources::{folder, listen, server, versions::Versions};
use tokio::sync::watch;

use crate::harness::{Received, Script, Server, dead_address, ok, status};

const PROGRAM: &str = env!("CARGO_BIN_EXE_neptune-gateway");

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path)
}

/// Serves a model of the digits until the test ends. Returns its address.
async fn serve(folder: &Path, model: &str) -> String {
    let directory = folder.join(model);
    fs::create_dir_all(directory.join("1")).unwrap();
    let file = example("digits/models").join(format!("{model}.json"));
    fs::copy(file, directory.join("1/model.json")).unwrap();
    let (sender, versions) = watch::channel(Versions::default());
    tokio::spawn(folder::watch(directory, sender));
    let mut ready = versions.clone();
    tokio::time::timeout(Duration::from_secs(20), ready.wait_for(|v| !v.ready().is_empty()))
        .await
        .unwrap()
        .unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let (routes, listening) = (server::routes(model, versions), address.clone());
    tokio::spawn(async move { listen::serve(&listening, routes).await.unwrap() });
    eventually("the server listens", || std::net::TcpStream::connect(&address).is_ok()).await;
    address
}

/// Runs `calibrate` with a configuration, while the servers of the test answer.
async fn calibrate(folder: &Path, config: &Value, arguments: &[&str]) -> Output {
    let path = folder.join("gateway.json");
    fs::write(&path, config.to_string()).unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("calibrate").arg("--config").arg(path).args(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

async fn digits(folder: &Path) -> Value {
    let (edge, cloud) = (serve(folder, "small").await, serve(folder, "big").await);
    json!({
        "service": "digits", "protocol": "oip",
        "edge": {"address": edge, "model": "small"},
        "cloud": {"url": format!("http://{cloud}"), "modelName": "big"},
        "hardExample": {"output": "probabilities", "goal": {"uploadRatio": 0.2}},
    })
}

#[tokio::test]
async fn digits_have_the_accuracies_of_the_example() {
    let folder = tempfile::tempdir().unwrap();
    let config = digits(folder.path()).await;
    let data = example("digits/data/test.csv");
    let plot = folder.path().join("plot.svg");
    let arguments = [
        "--data",
        data.to_str().unwrap(),
        "--no-header",
        "--output=json",
        "--accuracy=0.95",
        "--svg",
        plot.to_str().unwrap(),
    ];
    let result = summary(&calibrate(folder.path(), &config, &arguments).await);
    // The numbers of `digits evaluate`, which needs no network.
    assert_eq!((&result["samples"], &result["unjudged"]), (&json!(600), &json!(0)));
    assert!((number(&result["edge"]["value"]) - 0.8933).abs() < 1e-4, "{}", result["edge"]);
    assert!((number(&result["cloud"]["value"]) - 0.9817).abs() < 1e-4, "{}", result["cloud"]);
    let row = &result["forUploadRatio"]["row"];
    let uploaded = number(&row["uploadRatio"]);
    assert!((0.195..=0.2).contains(&uploaded), "{row}");
    assert!(number(&row["joint"]["value"]) >= 0.95, "{row}");
    assert!((number(&row["random"]) - (0.8933 + 0.0884 * uploaded)).abs() < 1e-3, "{row}");
    let accuracy = &result["forAccuracy"];
    let (certain, sample) = (&accuracy["certain"], &accuracy["onTheseSamples"]);
    assert!(number(&accuracy["lowerBound"]) >= 0.95, "{accuracy}");
    assert!(number(&certain["uploadRatio"]) > number(&sample["uploadRatio"]), "{accuracy}");
    assert!(number(&sample["joint"]["value"]) >= 0.95, "{accuracy}");
    let table = result["table"].as_array().unwrap();
    assert_eq!((&table[0]["uploadRatio"], &table[0]["joint"]), (&json!(0.0), &result["edge"]));
    assert!(table.len() == 21, "{}", table.len());

    let svg = fs::read_to_string(plot).unwrap();
    let mut reader = quick_xml::Reader::from_str(&svg);
    let (mut elements, mut texts) = (Vec::new(), String::new());
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Start(element) | quick_xml::events::Event::Empty(element) => {
                elements.push(element.name().as_ref().to_owned());
            }
            quick_xml::events::Event::Text(text) => texts += &text,
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(elements.iter().filter(|name| *name == "circle").count(), 2);
    for label in ["samples uploaded to the cloud (%)", "correct answers (%)", "edge only 89.3 %"] {
        assert!(texts.contains(label), "{label}: {texts}");
    }
}

#[tokio::test]
async fn table_is_for_people_and_a_subset_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = digits(folder.path()).await;
    config["hardExample"]["algorithm"] = json!("Margin");
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    // A directory, as a Dataset may be one. The files have a header and the label first.
    let lines = fs::read_to_string(example("digits/data/test.csv")).unwrap();
    let turned: Vec<String> = lines
        .lines()
        .map(|line| line.rsplit_once(',').map(|(image, label)| format!("{label},{image}")).unwrap())
        .collect();
    let header: Vec<String> = (0..65).map(|column| format!("c{column}")).collect();
    for (index, part) in turned.chunks(300).enumerate() {
        let content = format!("{}\n{}\n", header.join(","), part.join("\n"));
        fs::write(data.join(format!("{index}.csv")), content).unwrap();
    }
    fs::write(data.join("README.md"), "no samples").unwrap();
    let arguments = [
        "--data",
        data.to_str().unwrap(),
        "--label-column=c0",
        "--samples=200",
        "--accuracy=0.99",
        "--batch=7",
    ];
    let output = calibrate(folder.path(), &config, &arguments).await;
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(table.starts_with("digits: 200 samples, Margin of Probabilities\n"), "{table}");
    for part in
        ["THRESHOLD   UPLOADED", "\nedge only ", "\ncloud only ", "Set goal.uploadRatio to 0.2"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(table.contains("200 samples do not show it with a certainty of 95 %"), "{table}");
}

/// The word behind `is`, of a question such as `What is 7?`.
fn asked(request: &Received) -> String {
    let content = request.json()["messages"][0]["content"].as_str().unwrap().to_owned();
    content.trim_start_matches("What is ").trim_end_matches('?').to_owned()
}

/// Right for questions with a high number. The higher it is, the surer.
fn small_model(request: &Received) -> Script {
    let number: u32 = asked(request).parse().unwrap_or(0);
    let word = if number >= 50 { format!("n{number}") } else { "unknown".to_owned() };
    let mut choice = json!({"index": 0, "message": {"content": format!("It is {word}.")}});
    if request.json()["logprobs"] == true {
        let logprob = (f64::from(number + 1) / 200.0).ln();
        let token = json!({"token": format!("It is {word}."), "logprob": logprob});
        choice["logprobs"] = json!({"content": [token]});
    }
    ok(json!({"choices": [choice]}))
}

fn big_model(request: &Received) -> Script {
    assert_eq!(request.json().get("logprobs"), None);
    ok(json!({"choices": [{"index": 0, "message": {"content": format!("N{}", asked(request))}}]}))
}

fn language_model(folder: &Path, edge: &str, cloud: &str) -> (Value, String) {
    let lines: Vec<String> = (0..100)
        .map(|n| {
            json!({"question": format!("What is {n}?"), "answers": [format!("n{n}")]}).to_string()
        })
        .collect();
    let data = folder.join("questions.jsonl");
    fs::write(&data, lines.join("\n")).unwrap();
    let config = json!({
        "service": "assistant", "protocol": "openai",
        "edge": {"address": edge, "model": "small"},
        "cloud": {"url": format!("http://{cloud}/v1"), "modelName": "big"},
    });
    (config, data.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn language_models_are_compared_by_expected_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (edge, cloud) = (Server::start(small_model).await, Server::start(big_model).await);
    let (config, data) =
        language_model(folder.path(), &edge.address.to_string(), &cloud.address.to_string());
    let arguments = ["--data", &data, "--output=json", "--upload-ratio=0.4", "--accuracy=0.7"];
    let result = summary(&calibrate(folder.path(), &config, &arguments).await);
    assert_eq!((&result["edge"]["value"], &result["cloud"]["value"]), (&json!(0.5), &json!(1.0)));
    // The 40 least sure ones, all of which were wrong.
    let row = &result["forUploadRatio"]["row"];
    assert_eq!((&row["uploadRatio"], &row["joint"]["value"]), (&json!(0.4), &json!(0.9)));
    assert!((number(&row["random"]) - 0.7).abs() < 1e-9, "{row}");
    // Above the confidence of question 39, and up to that of question 40.
    assert!((0.1999..0.2051).contains(&number(&row["threshold"])), "{row}");
    assert!(cloud.received().iter().all(|request| request.json()["model"] == "big"));
}

#[tokio::test]
async fn failures_name_the_server_the_samples_and_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (edge, cloud) = (Server::start(small_model).await, Server::start(big_model).await);
    let address = edge.address.to_string();
    let dead = dead_address().to_string();
    let (config, data) = language_model(folder.path(), &address, &cloud.address.to_string());
    let csv = folder.path().join("samples.csv");
    fs::write(&csv, "1,2\n").unwrap();
    let csv = csv.to_str().unwrap();
    let empty = folder.path().join("empty.jsonl");
    fs::write(&empty, "\n").unwrap();
    let broken = folder.path().join("broken.jsonl");
    fs::write(&broken, "{\"question\":\"a\"}\n").unwrap();
    let with = |pointer: &str, value: Value| {
        let mut config = config.clone();
        *config.pointer_mut(pointer).unwrap() = value;
        config
    };
    let (empty, broken) = (empty.to_str().unwrap(), broken.to_str().unwrap());
    for (config, data, code, message) in [
        (config.clone(), csv, 2, "protocol openai needs samples in jsonl; give --format jsonl"),
        (config.clone(), "absent.jsonl", 2, "cannot read absent.jsonl: No such file"),
        (config.clone(), empty, 2, "empty.jsonl has no samples"),
        (config.clone(), broken, 2, "broken.jsonl, line 1: there is no answer; add answer"),
        (with("/cloud", Value::Null), &data, 2, "no cloud to compare with; add cloud.url"),
        (with("/edge/address", json!(dead)), &data, 1, "it is not reachable, or not ready"),
        (
            with("/cloud/url", json!(format!("http://{dead}/v1"))),
            &data,
            1,
            "did not answer sample 1: ",
        ),
    ] {
        let output = calibrate(folder.path(), &config, &["--data", data]).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}: {error}");
        assert!(error.contains(message), "{message}: {error}");
    }
    edge.become_script(|_| status(400, json!({"error": "no logprobs here"})));
    let output = calibrate(folder.path(), &config, &["--data", &data]).await;
    let error = text(&output.stderr);
    assert!(error.contains("it gives none; use a server that does"), "{error}");
}
