//! When downloads from URLs may run, and how fast: the values of the agent's options, and which
//! downloads do not wait for a window.

mod gate;
mod rate;
mod urgency;
mod window;

pub use self::{
    gate::DownloadGate,
    rate::{InvalidRate, MIN_DOWNLOAD_RATE, parse_rate},
    urgency::{NodeInUse, urgent_sources},
    window::{DownloadWindows, InvalidWindow, WindowState},
};
