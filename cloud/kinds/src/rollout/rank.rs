//! The order in which nodes get a change: those of the canary selector first, the others by a hash,
//! which differs per object and change.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

/// The place of a node in the order of a rollout. Its text, such as `1:3fffffffffffffff`, is in the
/// status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    is_later: bool,
    hash: u64,
}

impl Rank {
    /// The rank that none is above.
    pub const LAST: Self = Self { is_later: true, hash: u64::MAX };

    /// The rank of a node in the rollout of a revision of the object with this uid.
    pub fn new(is_canary: bool, uid: &str, revision: &str, node: &str) -> Self {
        let mut hasher = Sha256::new();
        for part in [uid, revision, node] {
            hasher.update(part);
            hasher.update([0]);
        }
        let digest = hasher.finalize();
        let first: [u8; 8] = digest[..8].try_into().expect("SHA-256 has 32 bytes");
        Self { is_later: !is_canary, hash: u64::from_be_bytes(first) }
    }

    /// Whether it is the rank of a canary.
    pub fn is_canary(self) -> bool {
        !self.is_later
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}", u8::from(self.is_later), self.hash)
    }
}

/// The text is not that of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidRank;

impl FromStr for Rank {
    type Err = InvalidRank;

    fn from_str(text: &str) -> Result<Self, InvalidRank> {
        let (class, hash) = text.split_once(':').ok_or(InvalidRank)?;
        let is_later = match class {
            "0" => false,
            "1" => true,
            _ => return Err(InvalidRank),
        };
        let hash = u64::from_str_radix(hash, 16).map_err(|_| InvalidRank)?;
        Ok(Self { is_later, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_rank_is_read_back_in_the_same_order() {
        let canary = Rank::new(true, "uid", "revision", "shop-1");
        let other = Rank::new(false, "uid", "revision", "shop-1");
        assert!(canary < other && other < Rank::LAST && canary.is_canary());
        for rank in [canary, other, Rank::LAST] {
            assert_eq!(rank.to_string().parse(), Ok(rank));
        }
        assert_eq!(Rank::LAST.to_string(), "1:ffffffffffffffff");
        for text in ["", "1", "2:0", "1:g", ":1"] {
            assert_eq!(text.parse::<Rank>(), Err(InvalidRank), "{text}");
        }
    }

    #[test]
    fn order_differs_per_object_and_revision() {
        let order = |uid: &str, revision: &str| {
            let mut nodes: Vec<u32> = (0..8).collect();
            nodes.sort_by_key(|node| Rank::new(false, uid, revision, &node.to_string()));
            nodes
        };
        let first = order("a", "1");
        assert_eq!(first, order("a", "1"));
        assert!(first != order("b", "1") && first != order("a", "2"));
    }
}
