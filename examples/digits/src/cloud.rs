//! The cloud worker: an HTTP server for the big model. `predict` defines requests and responses.

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
use crate::predict::{PredictRequest, PredictResponse};
use crate::settings::CloudSettings;
use crate::stop::Stop;

/// How long a shutdown waits for requests in progress.
const GRACE: Duration = Duration::from_secs(2);

struct Cloud {
    service: String,
    model: Model,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When the model cannot be used or the address is in use.
pub async fn run(settings: &CloudSettings) -> Result<(), Error> {
    let mut stop = Stop::listen()?;
    let model = model_file::read(&settings.model_url)?;
    let address = format!("{}:{}", settings.big_model_bind_ip, settings.big_model_bind_port);
    let listen_error = |source| Error::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(&address).await.map_err(listen_error)?;
    eprintln!(
        "cloud worker of service {} listens on {}",
        settings.service_name,
        listener.local_addr().map_err(listen_error)?
    );
    serve(listener, &settings.service_name, model, async move {
        stop.requested().await;
    })
    .await
    .map_err(listen_error)
}

/// Serves on `listener` until `stop` resolves, then finishes requests in progress.
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
    let (stop_sender, stopped) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        stop.await;
        // The receiver is dropped if the server has ended already.
        let _ = stop_sender.send(());
    });
    tokio::select! {
        ended = server => ended,
        () = async { if stopped.await.is_ok() { tokio::time::sleep(GRACE).await } else { std::future::pending().await } } => Ok(()),
    }
}

type Rejection = (StatusCode, String);

async fn predict(
    State(cloud): State<Arc<Cloud>>,
    Path(service): Path<String>,
    request: Result<Json<PredictRequest>, JsonRejection>,
) -> Result<Json<PredictResponse>, Rejection> {
    if service != cloud.service {
        return Err((
            StatusCode::NOT_FOUND,
            format!("this worker serves {}, not {service}\n", cloud.service),
        ));
    }
    let Json(request) = request.map_err(|rejection| (rejection.status(), rejection.body_text()))?;
    request
        .answer(&cloud.model)
        .map(Json)
        .map_err(|reason| (StatusCode::BAD_REQUEST, format!("{reason}\n")))
}
