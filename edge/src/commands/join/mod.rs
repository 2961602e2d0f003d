//! The `join` command: takes a node from nothing to an agent with a certificate of its fleet, in
//! steps of which each can be repeated.

pub mod answer;
mod exchange;
pub mod files;
pub mod preflight;
pub mod settings;
pub mod step;
pub mod unit;

use std::{path::Path, pin::pin, process::ExitCode, time::Duration};

use jiff::Timestamp;
use neptune_agent_core::domain::node_context::KEY_FILE;
use neptune_join::{JOIN_VERSION, JoinRequest};
use neptune_pinned_tls::TlsKey;
use tokio::time::sleep;

use self::{
    answer::CheckedAnswer,
    preflight::{JoinPlan, Places},
    step::{Failure, Reason, Step},
};
use crate::cli::JoinArgs;

/// The beginning of each line on standard error.
const NAME: &str = "neptune-edge join";
/// Interval of the lines while a step takes longer.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Joins, prints what is done, and returns the exit code of the process.
pub async fn join(args: JoinArgs) -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| "neptune-edge".into());
    let show = async |step: Step| {
        if step != Step::Unit || !args.place.no_unit {
            eprintln!("{NAME}: {}", step.text());
        }
    };
    match run(&args, &program, show).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{NAME}: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs all steps. `before` is awaited before each of them. `program` is this program, for the
/// doctor.
///
/// # Cancel safety
/// The future can be dropped, and the process killed, at any time: the same call then continues.
/// The settings change only in their step, after everything that they name.
///
/// # Errors
/// The step that failed. Errors of the doctor are returned after the later steps: the agent may work
/// nevertheless.
pub async fn run(
    args: &JoinArgs,
    program: &Path,
    mut before: impl AsyncFnMut(Step),
) -> Result<(), Failure> {
    before(Step::Preflight).await;
    let (plan, places) = preflight(args)?;
    let (token, settings) = (&plan.token, &args.place.settings);

    before(Step::Key).await;
    let key = files::key(&places.data_dir, !args.place.no_unit)?;

    before(Step::Connect).await;
    let what = format!("the join server {}", plan.server.address());
    let connected = exchange::connect(&plan.server, &token.authority);
    let stream = with_progress(&what, connected).await?;

    before(Step::Request).await;
    let request = request(&plan, &key);
    let answered = exchange::request(stream, &plan.server, &request);
    let answer = with_progress(&what, answered).await?;
    let CheckedAnswer { answer, valid_until } = answer::check(answer, token, key.pin())?;

    before(Step::Authority).await;
    files::write_certificate(Step::Authority, &places.authority, &answer.ca)?;
    before(Step::Certificate).await;
    files::write_certificate(Step::Certificate, &places.certificate, &answer.certificate)?;

    before(Step::Settings).await;
    let joined = answer::settings(
        &answer,
        &token.node,
        &places,
        &places.data_dir.join(KEY_FILE),
        args.place.data_dir.as_deref(),
    );
    let text = settings::with_join(&files::settings(settings)?, &joined);
    files::write_settings(settings, &text, &places.data_dir)?;
    for warning in answer::warnings(&answer, now()) {
        eprintln!("{NAME}: warning: {warning}");
    }

    before(Step::Doctor).await;
    let checked = with_progress("the doctor", unit::doctor(program, &settings::parse(&text))).await;

    before(Step::Unit).await;
    if !args.place.no_unit {
        with_progress("systemd", unit::start()).await?;
        with_progress("the first index", unit::until_seen(&places.data_dir)).await?;
    }

    before(Step::Report).await;
    println!("Node         {}", token.node);
    println!("Broker       {}", answer.broker_url);
    println!("Key          {}", key.pin().0);
    println!("Valid until  {valid_until}");
    println!("Settings     {}", settings.display());
    println!("Next         kubectl neptune nodes {}", token.node);
    checked.map_err(|problem| {
        let remedy =
            "correct what the doctor names; `neptune-edge doctor` with these settings checks again";
        Failure::new(Step::Report, Reason::DoctorErrors, problem, remedy)
    })
}

/// Reads the token and the present settings, and decides whether the node can join.
fn preflight(args: &JoinArgs) -> Result<(JoinPlan, Places), Failure> {
    preflight::check_transport(args)?;
    let token = files::token(args)?;
    let plan = preflight::plan(args, &token, rustix::process::geteuid().is_root())?;
    let path = &args.place.settings;
    let present = settings::parse(&files::settings(path)?);
    if !args.force {
        let authority = present.get("NEPTUNE_MQTT_CA_FILE").map_or("", String::as_str);
        let authority = files::settings_or_empty(Path::new(authority));
        preflight::check_present(&plan, &present, &answer::authorities(&authority), path)?;
    }
    Ok((plan, Places::new(args.place.data_dir.as_deref(), &present)))
}

fn request(plan: &JoinPlan, key: &TlsKey) -> JoinRequest {
    JoinRequest {
        version: JOIN_VERSION,
        node: plan.token.node.clone(),
        id: plan.token.id.clone(),
        secret: plan.token.secret.clone(),
        csr: key.signing_request(plan.token.node.as_str()),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
    }
}

/// Returns the clock of the node in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn now() -> i64 {
    Timestamp::now().as_second()
}

/// Prints a line every two seconds while the work takes time.
async fn with_progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return result,
            () = sleep(PROGRESS_INTERVAL) => eprintln!("{NAME}: waiting for {what}"),
        }
    }
}
