//! The closed list of reasons, by the kind that uses them: name, phase and condition. Each file has
//! a macro that passes the groups before it and its own on to the next macro.

use super::Phase;

#[macro_use]
mod shared;
#[macro_use]
mod services;
#[macro_use]
mod models;
#[macro_use]
mod trainings;

shared_reasons! { service_reasons model_reasons training_reasons reasons : }
