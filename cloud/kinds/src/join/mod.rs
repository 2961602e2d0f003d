//! How nodes join the fleet: which request gets a certificate, what of it is recorded in the
//! `EdgeNode`, which certificates are revoked, and the addresses of the cluster for nodes.

pub mod addresses;
pub mod decision;
pub mod record;
pub mod token_entry;
