//! Puts the parts of `neptune-cloud run` together and ends them in order.

use std::{path::Path, time::Duration};

use futures::channel::mpsc;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use neptune_link::{Link, LinkOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::Run,
    controllers::{self, Context},
    downstream::Downstream,
    error::Error,
    metrics::Metrics,
    serve::{self, Questions},
    stores::Stores,
    upstream,
};

/// How long the last messages may take when the program ends.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Only what is wrong from the start: flags, kubeconfig, a taken address. Neither the API server nor
/// the broker has to be there.
pub async fn run(flags: Run) -> Result<(), Error> {
    let listener = serve::bind(flags.listen).await?;
    let client = client(flags.kubeconfig.as_deref()).await?;
    let (link, events) = Link::start(LinkOptions {
        ca_file: flags.mqtt_ca_file,
        subscriptions: vec![flags.topic_prefix.upstream()],
        ..LinkOptions::new(flags.mqtt_url, client_id())
    })?;
    let metrics = Metrics::default();
    let downstream = Downstream::new(link.clone(), flags.topic_prefix.clone(), metrics.clone());
    let questions = Questions::new(downstream.clone(), metrics.registry());
    let (send_change, changes) = mpsc::unbounded();
    let only = flags.watch_namespace.as_deref();
    let stores = Stores::watch(&client, only, &flags.namespace, &send_change);
    let (context, wakes) =
        Context::new(client, stores.clone(), downstream, metrics, flags.fetch_image);
    let work = async {
        // Before the copies are whole, a model or an object that is not in them may well exist.
        stores.ready().await;
        tracing::info!("the API server's objects are here");
        controllers::expect(&context);
        futures::join!(
            controllers::dispatch(changes, context.clone()),
            controllers::run(wakes.services, context.clone()),
            controllers::run(wakes.inference_models, context.clone()),
            upstream::listen(events, context.clone(), flags.topic_prefix),
        );
    };
    tracing::info!(listen = %flags.listen, "neptune-cloud runs");
    tokio::select! {
        () = work => {}
        () = serve::serve(listener, questions) => {}
        () = stop_signal() => tracing::info!("ending"),
    }
    link.close(GOODBYE).await;
    Ok(())
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let origin = kubeconfig.map_or_else(
        || "no --kubeconfig, and the environment has none either".to_owned(),
        |path| format!("--kubeconfig {}", path.display()),
    );
    let error = |why: String| Error::Kubeconfig { origin: origin.clone(), why };
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|e| error(e.to_string()))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|e| error(e.to_string()))?
        }
        None => Config::infer().await.map_err(|e| error(e.to_string()))?,
    };
    Client::try_from(config).map_err(|e| error(e.to_string()))
}

/// Two controllers of one name would throw each other off the broker.
fn client_id() -> String {
    format!("neptune-cloud-{:x}-{:x}", Timestamp::now().as_microsecond(), std::process::id())
}

async fn stop_signal() {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be had");
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be had");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
