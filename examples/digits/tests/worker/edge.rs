//! The counters, output and reports of the edge worker.

use axum::{Router, http::StatusCode, routing::post};
use digits::evaluate::{Evaluation, evaluate};
use digits::{model_file, samples};
use hard_example::Rule;
use neptune_harness::{Broker, MqttClient, free_port, within};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::cloud::Cloud;
use crate::program::{BIG, Program, SMALL};
use crate::reports::{Reports, counted};

/// The result of `evaluate` with the rule of [`Program::edge`].
fn expected() -> Evaluation {
    let (small, big) = (model_file::read(SMALL).unwrap(), model_file::read(BIG).unwrap());
    let parameters = r#"[{"key":"threshold_cross_entropy","value":"0.75"}]"#;
    evaluate(
        &samples::held_out(),
        &small,
        &big,
        &mut Rule::new("CrossEntropy", parameters).unwrap(),
    )
}

/// Equal but for the last digit, which the JSON parser may miss.
fn near(number: &serde_json::Value, expected: f64) -> bool {
    number.as_f64().is_some_and(|number| (number - expected).abs() < 1e-12)
}

/// A URL on which nothing listens.
fn unused_url() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

#[tokio::test]
async fn worker_with_cloud_reports_the_numbers_of_evaluate() {
    let (broker, cloud) = (Broker::start().await, Cloud::start().await);
    let mut reports = Reports::observe(&broker).await;
    let mut worker = Program::edge(&broker.url(), &cloud.url, &[("PASSES", "2")]);
    let expected = expected();

    let first = reports.next().await;
    assert_eq!((first.status.as_str(), first.namespace.as_str()), ("running", "default"));
    assert_eq!(
        (first.owner_name.as_str(), first.owner_kind.as_str()),
        ("demo", "jointinferenceservice")
    );
    let line = worker.line().await;
    assert!(near(&line["edgeOnly"], expected.edge_only), "{line} {expected:?}");
    assert!(near(&line["cloudOnly"], expected.cloud_only), "{line} {expected:?}");
    assert!(near(&line["joint"], expected.joint), "{line} {expected:?}");
    assert!(near(&line["uploadCloudRatio"], expected.upload_ratio), "{line} {expected:?}");
    assert_eq!(line["inferenceNumber"], 1200);

    let done = reports.until(|report| report.status == "completed").await;
    assert_eq!(accuracy(&done), format!("{:.4}", expected.edge_only));
    assert_eq!(counted(&done), (1200, line["hardExampleNumber"].as_u64().unwrap()));
    assert_eq!(reports.next().await, done, "an idle worker repeats its last report");
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn worker_waits_for_a_cloud_that_starts_after_it() {
    let (broker, cloud) = (Broker::start().await, unused_url());
    let mut reports = Reports::observe(&broker).await;
    let mut worker = Program::edge(&broker.url(), &cloud, &[("CLOUD_WAIT", "60")]);
    // The model is loaded, and without the wait the pass is over before the third report.
    for _ in 0..3 {
        let report = reports.until(|report| report.output.is_some()).await;
        assert_eq!((report.status.as_str(), counted(&report)), ("running", (0, 0)));
    }
    let _cloud = Cloud::start_on(&cloud).await;
    let line = worker.line().await;
    assert!(near(&line["joint"], expected().joint), "{line}");
    let done = reports.until(|report| report.status == "completed").await;
    assert_eq!(counted(&done), (600, line["hardExampleNumber"].as_u64().unwrap()));
    assert_eq!(done.task_info.unwrap().counters.fallback, 0);
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn wait_for_a_cloud_that_never_starts_ends() {
    let broker = Broker::start().await;
    let mut worker = Program::edge(&broker.url(), &unused_url(), &[("CLOUD_WAIT", "0.1")]);
    assert_eq!(worker.line().await["inferenceNumber"], 600);
}

/// The accuracy that a report contains for its only model.
fn accuracy(report: &neptune_wire::WorkerInfo) -> String {
    let models = report.models().unwrap();
    let [model] = &models[..] else { panic!("{report:?}") };
    let accuracy = model.metrics.iter().find(|metric| metric.key == "accuracy");
    accuracy.unwrap().value.clone()
}

#[tokio::test]
async fn model_is_reloaded_while_the_count_continues() {
    let broker = Broker::start().await;
    let mut reports = Reports::observe(&broker).await;
    let topic = "neptune/workers/demo-edge/reload";
    let more = [("WORKER_RELOAD_TOPIC", topic), ("PASSES", "0"), ("RATE", "500")];
    let mut worker = Program::edge(&broker.url(), &unused_url(), &more);
    let mut agent = MqttClient::connect(broker.port(), &[]).await;
    let small = reports.until(|report| report.output.is_some() && counted(report).0 > 10).await;
    let expected = expected();
    assert_eq!(accuracy(&small), format!("{:.4}", expected.edge_only));
    for (path, wanted) in [("/nowhere", SMALL), (BIG, BIG)] {
        let reload =
            serde_json::json!({"name": "m", "path": path, "url": "http://h/m", "revision": 1});
        agent.publish_retained(topic, reload.to_string()).await;
        agent.flush().await;
        if wanted == BIG {
            let big = reports.until(|report| report.models().unwrap()[0].url == BIG).await;
            assert_eq!(accuracy(&big), format!("{:.4}", expected.cloud_only));
            assert!(counted(&big).0 >= counted(&small).0);
            let start = |report: &neptune_wire::WorkerInfo| {
                report.task_info.as_ref().unwrap().start_time.clone()
            };
            assert_eq!(start(&big), start(&small), "the run continues");
        }
    }
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn worker_without_cloud_uses_edge_answers_and_counts_none_as_hard() {
    let broker = Broker::start().await;
    for cloud in [unused_url(), String::new(), failing_cloud().await.0] {
        let mut reports = Reports::observe(&broker).await;
        let mut worker = Program::edge(&broker.url(), &cloud, &[]);
        let line = worker.line().await;
        assert_eq!(line["joint"], line["edgeOnly"], "{cloud}");
        assert_eq!(line["cloudOnly"], serde_json::Value::Null, "{cloud}");
        let done = reports.until(|report| report.status == "completed").await;
        assert_eq!(counted(&done), (600, 0), "{cloud}");
        assert!(worker.terminate().await.success());
    }
}

/// A cloud worker that answers every request with an error, and its requests.
async fn failing_cloud() -> (String, UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = unbounded_channel();
    let answer = post(async move || {
        // Only one of the tests receives the requests.
        let _ = sender.send(());
        StatusCode::INTERNAL_SERVER_ERROR
    });
    tokio::spawn(async move {
        axum::serve(listener, Router::new().route("/demo/predict", answer)).await
    });
    (url, requests)
}

#[tokio::test]
async fn last_report_on_sigterm_contains_all_counts() {
    let (broker, (cloud, mut requests)) = (Broker::start().await, failing_cloud().await);
    let mut reports = Reports::observe(&broker).await;
    // One report per minute: an earlier one is sent because of the start or the exit.
    let more = [("PASSES", "0"), ("RATE", "200"), ("LC_PERIOD", "60")];
    let mut worker = Program::edge(&broker.url(), &cloud, &more);
    assert_eq!(counted(&reports.next().await), (0, 0));
    for _ in 0..3 {
        within("a request to the cloud", requests.recv()).await.unwrap();
    }
    assert!(worker.terminate().await.success());
    let last = reports.next().await;
    assert_eq!(last.status, "running");
    assert!(counted(&last).0 >= 2 && counted(&last).1 == 0, "{last:?}");
}

#[tokio::test]
async fn broker_that_starts_late_gets_the_whole_count() {
    let port = free_port();
    let mut worker = Program::edge(&format!("mqtt://127.0.0.1:{port}"), &unused_url(), &[]);
    assert_eq!(worker.line().await["inferenceNumber"], 600);
    let broker = Broker::start_on(port).await;
    let mut reports = Reports::observe(&broker).await;
    assert_eq!(counted(&reports.next().await), (600, 0));
    assert!(worker.terminate().await.success());
}

#[tokio::test]
async fn worker_that_cannot_start_reports_failed_and_exits_with_error() {
    let broker = Broker::start().await;
    for broken in [
        ("MODEL_URL", "/nowhere/small.json"),
        ("HEM_NAME", "Guess"),
        ("HEM_PARAMETERS", r#"[{"key":"threshold","value":"0.5"}]"#),
        ("BIG_MODEL_URL", "https://cloud"),
    ] {
        let mut reports = Reports::observe(&broker).await;
        let mut worker = Program::edge(&broker.url(), &unused_url(), &[broken]);
        let failed = reports.until(|report| report.status == "failed").await;
        assert_eq!(counted(&failed), (0, 0));
        assert!(!worker.exited().await.success(), "{broken:?}");
    }
}
