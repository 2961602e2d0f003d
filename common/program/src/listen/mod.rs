//! One accept loop for all servers: a connection that is silent, floods or fails concerns only its
//! own client.
//!
//! A new connection is *pending* until its client has shown what it is: a known key after a TLS
//! handshake, a login, or a complete request head. Pending connections have a stage of their own,
//! which is small and whose connections end soon, so that connections without a client behind them
//! take no place of others. [`Entry::admit`] moves a connection to a place.
//!
//! While a stage is full, the newest connection is refused, never an older one. Each refusal is
//! counted by its cause.
//!
//! | file | task |
//! |---|---|
//! | `admission` | decides which connection is admitted or refused; pure |
//! | `source` | the address by which connections are counted; pure |
//! | `gate` | the admission of one listener, shared by its connections |
//! | `accept` | the loop |
//! | `http` | an HTTP/1 connection whose requests need no identity |
//! | `refusals` | the counters and their metrics |
//! | `budget` | bytes that all connections hold together |
//! | `pace` | the minimum speed of a body; pure |
//! | `shares` | permits that one client cannot use up |

mod accept;
mod admission;
mod budget;
mod gate;
mod http;
mod pace;
mod refusals;
mod shares;
mod source;

pub use self::{
    accept::{Accept, bind, run},
    admission::{Identity, Limits, Refusal},
    budget::{ByteBudget, HeldBytes},
    gate::{Entry, Gate},
    http::{HttpRules, busy, first_byte, serve_http},
    pace::MinSpeed,
    refusals::Refusals,
    shares::{Share, Shares},
    source::{Peer, Source},
};
