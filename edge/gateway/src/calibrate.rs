//! `calibrate`: asks both model servers about labelled samples, and shows what each threshold does.
//! The files and the order of the requests; what is computed is in `neptune_cascade::calibration`.

mod ask;
mod body;
mod judge;
mod plot;
mod samples;
mod summary;

use std::{fs, path::Path};

use bytes::Bytes;
use hyper::Method;
use neptune_cascade::calibration::{Calibration, Judged};
use tracing::{info, warn};

use self::{
    ask::Servers,
    body::Input,
    judge::{judge_rows, judge_text},
    samples::{Invalid, Question, Row},
    summary::Summary,
};
use crate::{
    cli::{CalibrateArgs, DataFormat, OutputFormat},
    config::{Protocol, Rule},
    error::{CalibrateError, Error},
    gateway::Service,
    probe,
    protocol::{
        Payload,
        completion::{Kind, Probed, Request},
        path::Task,
    },
    reload::Files,
    upstream::read_token,
};

/// Progress is logged this many times.
const REPORTS: usize = 10;

/// Asks about all samples, prints the result, and writes the plot.
///
/// # Errors
/// The configuration, the samples, or a model server.
pub async fn calibrate(args: &CalibrateArgs) -> Result<(), Error> {
    let service = Service::new(Files::new(&args.config).read_config()?)?;
    let judged = match (service.protocol(), &service.rule) {
        (_, Rule::Constant | Rule::Boxes(_)) => return Err(CalibrateError::Rule.into()),
        (Protocol::Openai, _) => {
            let questions = read(args, DataFormat::Jsonl, &service, |text| {
                samples::questions(&String::from_utf8_lossy(text))
            })?;
            let servers = prepared(&service)?;
            ask_questions(&service, &servers, args, &questions).await?
        }
        _ => {
            let delimiter = u8::try_from(args.reading.delimiter).ok().filter(u8::is_ascii);
            let delimiter = delimiter.ok_or(CalibrateError::Delimiter(args.reading.delimiter))?;
            let rows = read(args, DataFormat::Csv, &service, |text| {
                if !args.reading.no_header && samples::has_numeric_header(text, delimiter) {
                    warn!(
                        "the first record is left out as a header, but has only numbers; use --no-header if it is a sample"
                    );
                }
                samples::rows(text, delimiter, &args.reading)
            })?;
            let servers = prepared(&service)?;
            ask_rows(&service, &servers, args, &rows).await?
        }
    };
    let ratio = args.upload_ratio.or(service.config.hard_example.goal.upload_ratio);
    let summary =
        Summary::new(&service, &Calibration::new(&judged), ratio.unwrap_or(0.2), args.accuracy);
    match args.output {
        OutputFormat::Table => print!("{}", summary.table()),
        OutputFormat::Json => println!("{}", summary.json()),
    }
    if let Some(path) = &args.svg {
        fs::write(path, plot::svg(&summary))
            .map_err(|source| CalibrateError::Write { path: path.clone(), source })?;
    }
    Ok(())
}

/// The servers, with the token of the cloud.
fn prepared(service: &Service) -> Result<Servers<'_>, CalibrateError> {
    let servers = Servers::from_service(service)?;
    let file = service.config.cloud.as_ref().and_then(|cloud| cloud.token_file.as_deref());
    if let (Some(file), Some(cloud)) = (file, &service.cloud) {
        let failed = |reason| CalibrateError::Token { path: file.to_owned(), reason };
        let token = read_token(file).map_err(|error| failed(error.to_string()))?;
        cloud.set_token(Some(&token)).map_err(|reason| failed(reason.to_owned()))?;
    }
    Ok(servers)
}

/// The samples of all files.
fn read<T>(
    args: &CalibrateArgs,
    needed: DataFormat,
    service: &Service,
    parse: impl Fn(&[u8]) -> Result<Vec<T>, Invalid>,
) -> Result<Vec<T>, CalibrateError> {
    let failed = |source| CalibrateError::Read { path: args.data.clone(), source };
    let is_directory = fs::metadata(&args.data).map_err(failed)?.is_dir();
    let format =
        args.reading.format.or_else(|| format_of(&args.data)).or(is_directory.then_some(needed));
    if format.ok_or_else(|| CalibrateError::Format(args.data.clone()))? != needed {
        let needed = if needed == DataFormat::Csv { "csv" } else { "jsonl" };
        let protocol = service.protocol();
        return Err(CalibrateError::FormatOfProtocol { protocol, needed });
    }
    let mut files = vec![args.data.clone()];
    if is_directory {
        let entries = fs::read_dir(&args.data).map_err(failed)?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        files = paths.collect::<Result<_, _>>().map_err(failed)?;
        files.retain(|path| format_of(path) == Some(needed));
        files.sort();
    }
    let mut all = Vec::new();
    for path in files {
        let text = fs::read(&path)
            .map_err(|source| CalibrateError::Read { path: path.clone(), source })?;
        let samples = parse(&text);
        all.extend(samples.map_err(|Invalid { line, reason }| CalibrateError::Sample {
            path,
            line,
            reason,
        })?);
    }
    if all.is_empty() {
        return Err(CalibrateError::Empty(args.data.clone()));
    }
    Ok(samples::spread(all, args.reading.samples))
}

fn format_of(path: &Path) -> Option<DataFormat> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "csv" | "tsv" => Some(DataFormat::Csv),
        "jsonl" | "ndjson" => Some(DataFormat::Jsonl),
        _ => None,
    }
}

/// Logs how many samples were answered, a few times.
fn progress(done: usize, last: usize, total: usize) {
    if done * REPORTS / total > last * REPORTS / total {
        info!("{done} of {total} samples are answered");
    }
}

async fn ask_rows(
    service: &Service,
    servers: &Servers<'_>,
    args: &CalibrateArgs,
    rows: &[Row],
) -> Result<Vec<Judged>, CalibrateError> {
    let protocol = service.protocol();
    let model = args.model.as_deref().or(service.config.edge.model.as_deref());
    let model = model.ok_or(CalibrateError::NoModel)?;
    let (edge_path, method) = match protocol {
        Protocol::Oip => (format!("/v2/models/{model}/infer"), Method::POST),
        _ => (format!("/v1/models/{model}:predict"), Method::POST),
    };
    let task = Task::from_request(protocol, &method, &edge_path).ok_or(CalibrateError::NoModel)?;
    let cloud_name = service.cloud.as_ref().and_then(|cloud| cloud.model_name());
    let cloud_path = task.cloud_path(protocol, cloud_name.unwrap_or(model));
    let input = match protocol {
        Protocol::Oip => {
            let page = servers.edge_page(&format!("/v2/models/{model}")).await?;
            Some(Input::of_metadata(&page).map_err(CalibrateError::Input)?)
        }
        _ => None,
    };
    let numbers = rows.first().map_or(0, |row| row.numbers.len());
    let shape = body::shape(&args.reading.shape, input.as_ref(), numbers);
    let shape = shape.map_err(CalibrateError::Input)?;
    let mut judged = Vec::with_capacity(rows.len());
    let size = usize::try_from(args.batch).unwrap_or(usize::MAX);
    for part in rows.chunks(size) {
        let what = format!("samples {} to {}", judged.len() + 1, judged.len() + part.len());
        let request = Payload::from(body::batch(protocol, input.as_ref(), part, &shape));
        let body = request.body.clone();
        let answers = servers.both((&edge_path, body.clone()), (&cloud_path, body), &what).await?;
        judged.extend(judge_rows(service, &request, &answers, part, &what)?);
        progress(judged.len(), judged.len() - part.len(), rows.len());
    }
    Ok(judged)
}

async fn ask_questions(
    service: &Service,
    servers: &Servers<'_>,
    args: &CalibrateArgs,
    questions: &[Question],
) -> Result<Vec<Judged>, CalibrateError> {
    const PATH: &str = "/v1/chat/completions";
    if let Rule::Tokens(_) = &service.rule {
        let address = service.edge.address().to_owned();
        let what = "a request for log-probabilities".to_owned();
        let failed = |reason: &str| CalibrateError::NoAnswer {
            side: "edge",
            address,
            what,
            reason: reason.to_owned(),
        };
        let _ = probe::run(service).await;
        match service.probed() {
            Probed::Unknown => return Err(failed("it is not reachable, or not ready")),
            Probed::None => {
                return Err(failed("it gives none; use a server that does, or algorithm Random"));
            }
            Probed::Chosen | Probed::Top2 => {}
        }
    }
    let model = args.model.as_deref().or(service.config.edge.model.as_deref());
    let cloud_model = service.cloud.as_ref().and_then(|cloud| cloud.model_name());
    let mut judged = Vec::with_capacity(questions.len());
    for question in questions {
        let what = format!("sample {}", judged.len() + 1);
        let body = body::chat(model, question, args.max_tokens);
        let answers = match Request::parse(Kind::Chat, &body) {
            None => continue,
            Some(request) => {
                let signal = match &service.rule {
                    Rule::Tokens(signal) => Some(signal),
                    _ => None,
                };
                let edge = request.edge_body(None, signal, service.probed());
                let edge = Bytes::from(edge.unwrap_or_else(|| body.clone()));
                let cloud = Bytes::from(request.cloud_body(cloud_model, false));
                servers.both((PATH, edge), (PATH, cloud), &what).await?
            }
        };
        judged.push(judge_text(service, &answers, question, &what)?);
        progress(judged.len(), judged.len() - 1, questions.len());
    }
    Ok(judged)
}
