//! The demo with `--llm`: a small language model at the edge and a stand-in for a large one in the
//! cloud. Asks all questions, disconnects the cloud, connects it again.

mod result;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use kube::api::Api;
use llm_example::{
    client::{Answer, Client},
    oracle::Oracle,
    questions::{Question, questions},
};
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_harness::{Proxy, free_port};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::AbortHandle, time::sleep};

use self::result::{Disconnection, Result};
use crate::{
    environment::{Environment, Example},
    summary::metric,
};

/// The name of the model at the edge.
const MODEL: &str = "smollm2";
/// A question for this model never leaves the edge.
const MODEL_AT_EDGE: &str = "smollm2@edge";
/// The name of the model in the cloud.
const CLOUD_MODEL: &str = "big";
/// The bearer token that the stand-in wants.
const TOKEN: &str = "demo-token";
/// Questions at a time: the slots of the edge's server.
const AT_ONCE: usize = 4;
/// Time limit for the start of the edge and the cloud worker, and for each later wait.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Time limit for the cloud's next answer. A gateway pauses at most 18 s.
const UNTIL_UPLOAD: Duration = Duration::from_secs(30);
/// Questions that are asked while the cloud is disconnected.
const WHILE_DISCONNECTED: usize = 20;

/// The cloud of the demo, and where the gateway will listen.
pub struct Assistant {
    questions: Vec<Question>,
    models: PathBuf,
    /// The server of the stand-in.
    oracle: AbortHandle,
    oracle_address: SocketAddr,
    /// Between the gateway and the stand-in.
    cloud: Proxy,
    gateway_port: u16,
    /// The node's directory of secrets.
    secrets: TempDir,
}

impl Assistant {
    /// Starts the cloud. `models` is the folder with the model file of the edge.
    pub async fn start(models: &Path) -> anyhow::Result<Self> {
        let questions = questions();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let oracle_address = listener.local_addr()?;
        let router = Oracle::new(&questions, CLOUD_MODEL, Some(TOKEN)).router();
        let oracle = tokio::spawn(async move { axum::serve(listener, router).await });
        let secrets = tempfile::Builder::new().prefix("neptune-demo-secrets-").tempdir()?;
        let token = secrets.path().join("llm");
        fs::write(&token, TOKEN)?;
        fs::set_permissions(&token, fs::Permissions::from_mode(0o400))?;
        Ok(Self {
            questions,
            models: models.to_owned(),
            oracle: oracle.abort_handle(),
            oracle_address,
            cloud: Proxy::start(oracle_address.port()).await,
            gateway_port: free_port(),
            secrets,
        })
    }

    /// Returns the example with the addresses of this run.
    pub fn example(&self) -> Example {
        let cloud = format!("http://127.0.0.1:{}/v1", self.cloud.port());
        let gateway = format!("spec:\n  gateway: {{port: {}}}\n  edgeWorker:", self.gateway_port);
        Example {
            folder: "examples/llm",
            service: "assistant",
            models: self.models.clone(),
            replacements: vec![
                ("http://127.0.0.1:8090/v1", cloud),
                ("spec:\n  edgeWorker:", gateway),
            ],
            agent_flags: vec![
                "--secret-dir".to_owned(),
                self.secrets.path().to_string_lossy().into_owned(),
            ],
            controller_flags: vec!["--gateway-image".to_owned(), "neptune/gateway:dev".to_owned()],
        }
    }

    /// Applies the example and runs the questions.
    pub async fn run(&self, environment: &Environment) -> anyhow::Result<()> {
        println!("{}\n", environment.hints());
        println!("Applying examples/llm/service.yaml: two models and a budget of 20 %, no code.");
        environment.apply_example().await?;
        let client = Client::new(&format!("http://127.0.0.1:{}/v1", self.gateway_port), None)?;
        let asked_before = self.wait_for_edge(&client, environment).await?;

        println!("Asking {} questions, {AT_ONCE} at a time.", self.questions.len());
        let joint = self.ask_all(&client, MODEL).await?;
        for side in ["edge", "cloud"] {
            let both = self.questions.iter().zip(&joint);
            if let Some(line) = result::first_of(side, both) {
                println!("{line}");
            }
        }
        // The others were answered by the edge already, and it always gives the same answer.
        let uploaded = joint.iter().zip(&self.questions).filter(|(answer, _)| is_of_cloud(answer));
        let uploaded: Vec<Question> = uploaded.map(|(_, question)| question.clone()).collect();
        println!("Asking the edge alone the {} questions that were uploaded.", uploaded.len());
        let at_edge = client.ask_all(MODEL_AT_EDGE, &uploaded, AT_ONCE, |_| {}).await?;
        println!("Asking the cloud alone all questions.");
        let cloud = Client::new(&format!("http://{}/v1", self.oracle_address), Some(TOKEN))?;
        let by_cloud = self.ask_all(&cloud, CLOUD_MODEL).await?;
        let counted = asked_before + self.questions.len() + uploaded.len();
        let status = wait_for_count(environment, counted).await?;

        let disconnection = self.disconnect(&client, &uploaded, environment).await?;
        let result = Result {
            questions: &self.questions,
            joint: &joint,
            at_edge: &at_edge,
            by_cloud: &by_cloud,
            counted,
            status,
            disconnection,
        };
        println!("\n{result}");
        if !result.passed() {
            bail!("a check of the demo failed; see the table above");
        }
        Ok(())
    }

    /// Waits until the edge answers. Returns the number of its answers.
    async fn wait_for_edge(
        &self,
        client: &Client,
        environment: &Environment,
    ) -> anyhow::Result<usize> {
        let began = Instant::now();
        let mut printed = String::new();
        loop {
            match client.ask(MODEL_AT_EDGE, &self.questions[0]).await {
                Ok(_) => {
                    println!("{:>5.1}s  the edge answers\n", began.elapsed().as_secs_f32());
                    return Ok(1);
                }
                Err(error) if began.elapsed() > TIMEOUT => {
                    return Err(error.context("the edge did not answer in time"));
                }
                Err(_) => {}
            }
            let condition = current(&status(environment).await?);
            if condition != printed {
                println!("{:>5.1}s  {condition}", began.elapsed().as_secs_f32());
                printed = condition;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn ask_all(&self, client: &Client, model: &str) -> anyhow::Result<Vec<Answer>> {
        let began = Instant::now();
        let progress = |answered| {
            if answered % 50 == 0 {
                let total = self.questions.len();
                println!("{:>5.1}s  {answered} of {total} answered", began.elapsed().as_secs_f32());
            }
        };
        client.ask_all(model, &self.questions, AT_ONCE, progress).await
    }

    /// Disconnects the cloud, asks on, and connects it again. `hard` are questions that it answered.
    async fn disconnect(
        &self,
        client: &Client,
        hard: &[Question],
        environment: &Environment,
    ) -> anyhow::Result<Disconnection> {
        let hard = if hard.is_empty() { &self.questions } else { hard };
        println!(
            "\nDisconnecting the cloud. Asking {WHILE_DISCONNECTED} questions that it answered."
        );
        self.cloud.close();
        let mut times = Vec::new();
        for question in hard.iter().cycle().take(WHILE_DISCONNECTED) {
            match client.ask(MODEL, question).await {
                Ok(answer) if is_of_cloud(&answer) => println!("answered by the cloud"),
                Ok(answer) => times.push(answer.took),
                Err(error) => println!("no answer: {error:#}"),
            }
        }
        times.sort_unstable();
        let condition = wait_for(environment, |status| {
            Some(current(status)).filter(|condition| condition.contains("CloudLeftAlone"))
        })
        .await
        .context("the status does not report that the cloud is left alone")?;
        println!("{} answers of the edge. The status: {condition}", times.len());

        println!("\nConnecting the cloud again. Asking until it answers.");
        self.cloud.open();
        let connected = Instant::now();
        let mut until_upload = None;
        for question in hard.iter().cycle() {
            if is_of_cloud(&client.ask(MODEL, question).await?) {
                until_upload = Some(connected.elapsed());
            }
            if until_upload.is_some() || connected.elapsed() > UNTIL_UPLOAD {
                break;
            }
        }
        Ok(Disconnection {
            asked: WHILE_DISCONNECTED,
            answered: times.len(),
            median: times.get(times.len() / 2).copied().unwrap_or_default(),
            until_upload,
        })
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        self.oracle.abort();
    }
}

fn is_of_cloud(answer: &Answer) -> bool {
    answer.answered_by.as_deref() == Some("cloud")
}

async fn status(environment: &Environment) -> anyhow::Result<JointInferenceServiceStatus> {
    let api: Api<JointInferenceService> = Api::namespaced(environment.client(), "default");
    let name = environment.service();
    let service = api.get(name).await.with_context(|| format!("JointInferenceService {name}"))?;
    Ok(service.status.unwrap_or_default())
}

/// The current condition in one line.
fn current(status: &JointInferenceServiceStatus) -> String {
    let Some(condition) = status.conditions.last() else { return "no status yet".to_owned() };
    let reason = condition.reason.as_deref().unwrap_or_default();
    let message = condition.message.as_deref().unwrap_or_default();
    format!("{} {reason}: {message}", condition.type_)
}

/// Waits until the status counts all samples.
async fn wait_for_count(
    environment: &Environment,
    samples: usize,
) -> anyhow::Result<JointInferenceServiceStatus> {
    let counted = |status: &JointInferenceServiceStatus| {
        metric(&status.metrics, "inferenceNumber").parse().unwrap_or(0)
    };
    wait_for(environment, |status| (counted(status) >= samples).then(|| status.clone()))
        .await
        .with_context(|| format!("the status does not count {samples} samples"))
}

async fn wait_for<T>(
    environment: &Environment,
    pick: impl Fn(&JointInferenceServiceStatus) -> Option<T>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        let status = status(environment).await?;
        if let Some(picked) = pick(&status) {
            return Ok(picked);
        }
        if began.elapsed() > TIMEOUT {
            bail!("waited {} s; the last status: {}", TIMEOUT.as_secs(), current(&status));
        }
        sleep(Duration::from_millis(200)).await;
    }
}
