//! The sample `InferenceModel`: applied unchanged where nothing that it names exists, and then with
//! the node, URLs and digests of this test.

use std::{cell::RefCell, fs, path::Path, process::Command};

use neptune_api::{InferenceModelStatus, TransitionStatus};
use neptune_e2e::{Fleet, ModelServer, Transport};
use neptune_harness::{
    docker::require_image,
    free_port,
    workspace::{root, run},
};

use crate::serving::{IMAGE, Load, client, has_message, is_rolled_back_to_3, serves, switch};

over_each_transport!(sample_model_reports_missing_inputs_then_serves_and_switches,);

const SAMPLE: &str = "common/api/tests/samples/inferencemodel.yaml";
const NAME: &str = "facialexpression";
/// The digests of the sample's files, which do not exist.
const DIGESTS: [&str; 2] = [
    "dec87e2f3c06e60e554acac0b2b80e394c616b0ecdf878fab7f04fd414a66eff",
    "108a433a941411217e5d4bf9f43a262d0247a14c35ccbf677f63ba3b46ae6285",
];

/// A framework table that replaces TensorFlow's server.
const TABLE: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata:
  name: neptune-frameworks
data:
  frameworks.yaml: |
    tensorflow:
      serving:
        image: neptune/model-server:dev
        args: ["--port={port}", "--model-name={modelName}", "--directory={directory}"]
        reload: watch
        healthPath: /v2/models/{modelName}/versions/{version}/ready
        numericVersions: true
"#;

/// Packs a model as the sample's file of this version, and returns its digest.
fn pack(dir: &Path, version: &str, model: &str) -> String {
    let unpacked = dir.join("unpacked");
    fs::create_dir_all(&unpacked).unwrap();
    fs::write(unpacked.join("model.json"), model).unwrap();
    let packed = dir.join(format!("www/model_emotion_{version}.tar.gz"));
    fs::create_dir_all(packed.parent().unwrap()).unwrap();
    run(Command::new("tar").arg("-czf").arg(&packed).arg("-C").arg(&unpacked).arg("model.json"));
    run(Command::new("sha256sum").arg(&packed))[..64].to_owned()
}

fn example(name: &str) -> String {
    fs::read_to_string(root().join("examples/digits/models").join(name)).unwrap()
}

async fn sample_model_reports_missing_inputs_then_serves_and_switches(transport: Transport) {
    use TransitionStatus::{InProgress, Pending, UpToDate};
    require_image(IMAGE, "hack/build-model-server-image.sh");
    let fleet = Fleet::start(transport).await;
    fleet.apply(TABLE);
    let dir = fleet.dir().join("sample");
    let three = pack(&dir, "3", &example("small.json"));
    let four = pack(&dir, "4", &example("big.json"));
    pack(&dir, "5", r#"{"format": "neptune-digits/1", "pool": 2, "layers": []}"#);

    let text = fs::read_to_string(root().join(SAMPLE)).unwrap();
    fleet.apply(&text);
    let seen = RefCell::new(Vec::new());
    let see = |status: &InferenceModelStatus| {
        seen.borrow_mut().extend(status.transition_status);
        seen.borrow_mut().dedup();
    };
    let is_reported = |status: &InferenceModelStatus| {
        see(status);
        has_message(status, "node \"precision-5820\" not found")
    };
    fleet.until_model(NAME, "without its node", is_reported).await;
    assert_eq!(*seen.borrow(), [Pending]);
    let listed = fleet.kubectl(&["get", "im", NAME]);
    assert!(listed.contains("PROGRESS") && listed.contains("Pending"), "{listed}");

    // On an existing node, with URLs of a server that does not run yet.
    let (files, port) = (free_port(), free_port().to_string());
    let url = format!("http://127.0.0.1:{files}");
    let here = text
        .replace("precision-5820", &fleet.edge)
        .replace("http://192.168.1.15", &url)
        .replace(DIGESTS[0], &three)
        .replace(DIGESTS[1], &four)
        .replace("8501", &port);
    fleet.apply(&here);
    let is_reported = |status: &InferenceModelStatus| {
        see(status);
        let file = format!("downloading 4: {url}/model_emotion_4.tar.gz: ");
        has_message(status, &file) && has_message(status, "refused")
    };
    let status = fleet.until_model(NAME, "without its files", is_reported).await;
    assert_eq!(status.transition_status, Some(InProgress));

    let _files = ModelServer::start_on(files, &dir.join("www")).await;
    let watched = |status: &InferenceModelStatus| {
        see(status);
        serves("4")(status)
    };
    let status = fleet.until_model(NAME, "serving 4", watched).await;
    assert_eq!(*seen.borrow(), [Pending, InProgress, UpToDate]);

    let mut load = Load::on(client(&status, NAME));
    load.answered(&["4"]).await;
    switch(&fleet, NAME, "3");
    fleet.until_model(NAME, "serving 3", serves("3")).await;
    load.answered(&["4", "3"]).await;

    let patch = format!(
        r#"[{{"op":"add","path":"/spec/manifest/-","value":{{"version":"5","downloadURL":"{url}/model_emotion_5.tar.gz"}}}},
            {{"op":"replace","path":"/spec/targetVersion","value":"5"}},
            {{"op":"add","path":"/spec/health","value":{{"startWithinSeconds":5}}}}]"#
    );
    fleet.kubectl(&["patch", "im", NAME, "--type=json", "-p", &patch]);
    is_rolled_back_to_3(&fleet, NAME).await;
    let outage = load.end().await;
    assert_eq!(outage.failed, 0, "{outage:?}");
}
