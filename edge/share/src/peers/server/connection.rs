//! One connection: the handshake, the member that it belongs to, and its end if the member leaves
//! the site or reads too slowly.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use neptune_pinned_tls::pin_of;
use neptune_program::listen::{Entry, Identity, Peer};
use neptune_wire::KeyPin;
use tokio::{
    net::TcpStream,
    time::{MissedTickBehavior, interval},
};
use tokio_rustls::server::TlsStream;

use super::{Shared, answer::answer, upload::UploadMeter};
use crate::peers::limits::{IDLE_TIMEOUT, SpeedWatch};

/// Time between two checks of a connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that a connection buffers.
const MAX_BUFFER: usize = 64 * 1024;

/// Serves a connection until its end. The handshake has the time of a pending connection.
pub async fn serve(shared: Arc<Shared>, stream: TcpStream, peer: Peer, entry: Entry) {
    let address = peer;
    // Requests are small, and their answers are waited for.
    let _ = stream.set_nodelay(true);
    let stream = match shared.acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%address, %error, "handshake failed"),
    };
    let Some(pin) = pin(&stream) else { return };
    if shared.roster.borrow().by_pin(&pin).is_none() {
        shared.refused.fetch_add(1, Ordering::Relaxed);
        entry.refuse_unknown();
        return tracing::debug!(%address, pin = pin.0, "refused a key that is not in the roster");
    }
    if let Err(cause) = entry.admit(Identity::Known(&pin.0)) {
        return tracing::debug!(%address, pin = pin.0, ?cause, "refused a member");
    }
    let meter = Arc::new(UploadMeter::default());
    let service = service_fn(|request| {
        let answer = answer(&shared, &pin, &meter, request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let reason = tokio::select! {
        ended = connection => match ended {
            Ok(()) => return,
            Err(error) => error.to_string(),
        },
        reason = check(&shared, &pin, &meter) => reason,
    };
    tracing::debug!(%address, reason, "connection of a peer ended");
}

fn pin(stream: &TlsStream<TcpStream>) -> Option<KeyPin> {
    pin_of(stream.get_ref().1.peer_certificates()?.first()?)
}

/// Returns why the connection has to end.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn check(shared: &Shared, pin: &KeyPin, meter: &UploadMeter) -> String {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut current: Option<(u64, SpeedWatch)> = None;
    loop {
        ticks.tick().await;
        if shared.roster.borrow().by_pin(pin).is_none() {
            return "the peer left the roster".to_owned();
        }
        let now = Instant::now();
        let Some((number, sent)) = meter.upload() else {
            current = None;
            continue;
        };
        if current.as_ref().is_none_or(|(known, _)| *known != number) {
            current = Some((number, SpeedWatch::new(now)));
        }
        let (_, watch) = current.as_mut().expect("it was set");
        if let Err(slow) = watch.observe(sent, now) {
            return format!("the peer reads too slowly ({slow:?})");
        }
    }
}
