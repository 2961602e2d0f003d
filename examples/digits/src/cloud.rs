//! The cloud worker: an HTTP server around the big model. What an answer holds is decided in `predict`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State, rejection::JsonRejection};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::error::Error;
use crate::model::Model;
use crate::model_file;
use crate::predict::{Answer, Question};
use crate::settings::CloudSettings;
use crate::stop::Stop;

/// A client that neither finishes its request nor hangs up is not waited for longer.
const GRACE: Duration = Duration::from_secs(2);

struct Cloud {
    service: String,
    model: Model,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When the model cannot be used or the address is taken.
pub async fn run(settings: &CloudSettings) -> Result<(), Error> {
    let mut stop = Stop::listen()?;
    let model = model_file::read(&settings.model_url)?;
    let address = format!("{}:{}", settings.big_model_bind_ip, settings.big_model_bind_port);
    let listen_error = |source| Error::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(&address).await.map_err(listen_error)?;
    eprintln!(
        "cloud worker of {} answers on {}",
        settings.service_name,
        listener.local_addr().map_err(listen_error)?
    );
    serve(listener, &settings.service_name, model, async move {
        stop.requested().await;
    })
    .await
    .map_err(listen_error)
}

/// Answers on `listener` until `stop` is ready, then finishes what is under way.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    service: &str,
    model: Model,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let cloud = Arc::new(Cloud { service: service.to_owned(), model });
    let routes = Router::new()
        .route("/healthz", get("ok\n"))
        .route("/{service}/predict", post(predict))
        .with_state(cloud);
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        stop.await;
        // Nobody listens only when the server has ended already.
        let _ = stopping.send(());
    });
    tokio::select! {
        ended = server => ended,
        () = async { if stopped.await.is_ok() { tokio::time::sleep(GRACE).await } else { std::future::pending().await } } => Ok(()),
    }
}

type Refusal = (StatusCode, String);

async fn predict(
    State(cloud): State<Arc<Cloud>>,
    Path(service): Path<String>,
    question: Result<Json<Question>, JsonRejection>,
) -> Result<Json<Answer>, Refusal> {
    if service != cloud.service {
        return Err((
            StatusCode::NOT_FOUND,
            format!("this worker serves {}, not {service}\n", cloud.service),
        ));
    }
    let Json(question) =
        question.map_err(|rejection| (rejection.status(), rejection.body_text()))?;
    question
        .answer(&cloud.model)
        .map(Json)
        .map_err(|reason| (StatusCode::BAD_REQUEST, format!("{reason}\n")))
}
