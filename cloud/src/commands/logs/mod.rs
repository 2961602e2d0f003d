//! The `logs` command: reads the log of a worker in a Pod from the API server, and that of a worker
//! at an agent with a `LogRequest`. What is requested is decided by `follow.rs`.

mod follow;
mod pod;

use std::{io::Write as _, time::Duration};

use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use neptune_api::{LogRequest, LogRequestPhase, LogRequestSpec, LogRequestStatus};

use self::{
    follow::{LogReader, Printed},
    pod::Followed,
};
use crate::{cli::Logs, commands::connect::connect, error::Error};

/// The pause between two looks at a request.
const POLL: Duration = Duration::from_millis(250);
/// How long the controller may take: longer than a node may take.
const TIMEOUT: Duration = Duration::from_secs(45);
/// The pause between two requests of `--follow`.
const FOLLOW: Duration = Duration::from_secs(2);
/// Maximum length of the object's name in that of a request, which the API server extends.
const MAX_NAME: usize = 50;

/// Prints the log of a worker.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, no such worker, or no log.
pub async fn logs(flags: Logs) -> Result<(), Error> {
    let (client, default) = connect(&flags.cluster).await?;
    let namespace = flags.namespace.clone().unwrap_or(default);
    let wanted = (flags.node.as_deref(), flags.tail, flags.since);
    let mut reader = LogReader::new(&flags.object, flags.worker, wanted).map_err(Error::Logs)?;
    if flags.node.is_none()
        && pod::print(&client, &namespace, reader.spec(), flags.follow).await? == Followed::Yes
    {
        return Ok(());
    }
    loop {
        let status = request(&client, &namespace, reader.spec()).await?;
        let printed = reader.on_answer(status, flags.follow).map_err(Error::Logs)?;
        if !print(&printed) || !flags.follow {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW).await;
    }
}

/// Returns whether the output is still read.
fn print(Printed { text, note }: &Printed) -> bool {
    if let Some(note) = note {
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    let mut output = std::io::stdout();
    // A closed pipe is not an error.
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_ok()
}

/// Creates a request, waits for its answer, and deletes it.
async fn request(
    client: &Client,
    namespace: &str,
    spec: &LogRequestSpec,
) -> Result<LogRequestStatus, Error> {
    let api: Api<LogRequest> = Api::namespaced(client.clone(), namespace);
    let name: String = spec.object_ref.name.chars().take(MAX_NAME).collect();
    let mut request = LogRequest::new("", spec.clone());
    request.metadata.name = None;
    request.metadata.generate_name = Some(format!("{}-", name.trim_end_matches(['.', '-'])));
    let created = api.create(&PostParams::default(), &request).await;
    let name = created.map_err(|error| refused(error, namespace))?.name_any();
    let answer = tokio::time::timeout(TIMEOUT, answer(&api, &name)).await;
    // Otherwise the controller deletes it later.
    let _ = api.delete(&name, &DeleteParams::default()).await;
    answer.unwrap_or_else(|_| {
        let why = format!(
            "LogRequest {name} was not answered for {} s; check that the controller runs, and has the rights of its release",
            TIMEOUT.as_secs()
        );
        Err(Error::Logs(why))
    })
}

/// Why a request cannot be created.
fn refused(error: kube::Error, namespace: &str) -> Error {
    match error {
        kube::Error::Api(status) if status.code == 403 => Error::Logs(format!(
            "{}; who may bind roles can allow it: kubectl -n {namespace} create rolebinding NAME --clusterrole=neptune-logs --user=USER",
            status.message
        )),
        error => Error::api("create a LogRequest")(error),
    }
}

async fn answer(api: &Api<LogRequest>, name: &str) -> Result<LogRequestStatus, Error> {
    loop {
        let request = api.get(name).await;
        let request = request.map_err(Error::api(format!("get LogRequest {name}")))?;
        if let Some(status) = request.status
            && status.phase != LogRequestPhase::Pending
        {
            return Ok(status);
        }
        tokio::time::sleep(POLL).await;
    }
}
