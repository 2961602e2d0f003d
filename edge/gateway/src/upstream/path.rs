//! How each sample of a request came through a chain of gateways: `cam=hard,box=easy`. Pure.

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

/// The decision of each gateway about each sample, the first gateway first.
pub const PATH: HeaderName = HeaderName::from_static("x-neptune-path");
/// `away` while the gateway that answers does not call its own cloud.
pub const UPPER: HeaderName = HeaderName::from_static("x-neptune-upper");
/// The value of [`UPPER`] while no call is made.
pub const AWAY: HeaderValue = HeaderValue::from_static("away");
/// The most samples whose paths are in their order. Those of larger requests are sums.
const MAX_ORDERED: usize = 256;
/// The most bytes of a path. A longer one is not sent.
const MAX_BYTES: usize = 8 * 1024;
/// Separates the paths of samples.
const SEPARATOR: char = ';';
/// Separates the number of samples from the path that they have.
const TIMES: char = '*';

/// What an answer of the cloud shows of the gateways above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upper {
    path: Option<String>,
    /// Whether the next gateway does not call its own cloud.
    pub is_away: bool,
}

/// How one sample came through the gateways above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpperSample<'a> {
    /// The path of the sample through the gateways above; empty if the cloud is no gateway.
    path: &'a str,
    /// Which tier answered: 0 for the next one.
    pub distance: usize,
    /// Whether each of these gateways asked for help and none got it.
    pub has_fallen_back: bool,
}

impl Upper {
    /// Reads the headers of an answer. A path in another form counts as none.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let path = headers.get(PATH).and_then(|path| path.to_str().ok());
        let path = path.filter(|path| path.len() <= MAX_BYTES && parse(path).is_some());
        let is_away = headers.get(UPPER).is_some_and(|upper| upper == AWAY);
        Self { path: path.map(str::to_owned), is_away }
    }

    /// The way of each of so many samples. If the answer is about another number of samples, it is
    /// that of one which no gateway knows more of.
    pub fn samples(&self, count: usize) -> Vec<UpperSample<'_>> {
        let groups = self.path.as_deref().and_then(parse).unwrap_or_default();
        let known = groups.iter().fold(0, |sum: usize, (_, times)| sum.saturating_add(*times));
        if known == count {
            return groups.iter().flat_map(|(sample, times)| vec![*sample; *times]).collect();
        }
        let Some((first, _)) = groups.first() else { return vec![UpperSample::default(); count] };
        // One request is one sample here, and several there, or the other way round.
        let of_all = groups.iter().fold(*first, |all, (sample, _)| UpperSample {
            path: if sample.distance > all.distance { sample.path } else { all.path },
            distance: all.distance.max(sample.distance),
            has_fallen_back: all.has_fallen_back && sample.has_fallen_back,
        });
        vec![of_all; count]
    }
}

impl<'a> UpperSample<'a> {
    /// Parses the path of a sample.
    fn parse(path: &'a str) -> Option<Self> {
        let mut sample = Self { path, distance: 0, has_fallen_back: true };
        let mut is_passed_on = false;
        for (tier, entry) in path.split(',').enumerate() {
            let (name, decision) = entry.split_once('=')?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
            if name.is_empty()
                || decision.is_empty()
                || !entry.replace('=', "").chars().all(is_name)
            {
                return None;
            }
            is_passed_on = matches!(decision, "hard" | "edge-down" | "edge-error");
            sample.has_fallen_back &= decision == "fallback";
            sample.distance = tier;
        }
        sample.distance += usize::from(is_passed_on);
        Some(sample)
    }

    /// The decisions of the gateways above, with their names.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.path.split(',').filter_map(|entry| entry.split_once('='))
    }
}

/// The paths of a header, each with the number of its samples.
fn parse(text: &str) -> Option<Vec<(UpperSample<'_>, usize)>> {
    let group = |group| {
        let (path, times) = match str::split_once(group, TIMES) {
            Some((path, times)) => (path, times.parse().ok().filter(|times| *times > 0)?),
            None => (group, 1),
        };
        Some((UpperSample::parse(path)?, times))
    };
    text.split(SEPARATOR).map(group).collect()
}

/// The header for these samples: the decision of this gateway, and for those that were sent up how
/// they came through the gateways above. `None` if it would be too long.
pub fn header<'a>(
    service: &str,
    samples: impl Iterator<Item = (&'static str, Option<UpperSample<'a>>)>,
) -> Option<HeaderValue> {
    let mut groups: Vec<(&'static str, &'a str, usize)> = Vec::new();
    let mut count = 0;
    for (decision, above) in samples {
        let above = above.map_or("", |above| above.path);
        count += 1;
        match groups.last_mut() {
            Some((last, path, times)) if *last == decision && *path == above => *times += 1,
            _ => groups.push((decision, above, 1)),
        }
    }
    if count > MAX_ORDERED {
        groups = summed(groups);
    }
    let mut text = String::new();
    for (decision, above, times) in groups {
        if !text.is_empty() {
            text.push(SEPARATOR);
        }
        text.extend([service, "=", decision]);
        if !above.is_empty() {
            text.extend([",", above]);
        }
        if times > 1 {
            text.push(TIMES);
            text.push_str(&times.to_string());
        }
    }
    if text.is_empty() || text.len() > MAX_BYTES { None } else { HeaderValue::try_from(text).ok() }
}

/// Each path once. There are few: each gateway has seven decisions.
fn summed<'a>(groups: Vec<(&'static str, &'a str, usize)>) -> Vec<(&'static str, &'a str, usize)> {
    let mut sums: Vec<(&'static str, &'a str, usize)> = Vec::new();
    for (decision, above, times) in groups {
        let known = sums.iter_mut().find(|(other, path, _)| (*other, *path) == (decision, above));
        match known {
            Some((_, _, sum)) => *sum += times,
            None => sums.push((decision, above, times)),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn upper(path: &str) -> Upper {
        let mut headers = HeaderMap::new();
        headers.insert(PATH, HeaderValue::from_str(path).unwrap());
        Upper::from_headers(&headers)
    }

    fn text(samples: &[(&'static str, Option<UpperSample<'_>>)]) -> String {
        header("cam", samples.iter().copied()).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn last_decision_shows_which_tier_answered() {
        for (path, distance, has_fallen_back) in [
            ("box=easy", 0, false),
            ("box=unjudged", 0, false),
            ("box=hard", 1, false),
            ("box=edge-down", 1, false),
            ("box=hard,hub=easy", 1, false),
            ("box=hard,hub=hard", 2, false),
            ("box=fallback", 0, true),
            ("box=fallback,hub=fallback", 1, true),
            ("box=hard,hub=fallback", 1, false),
        ] {
            let upper = upper(path);
            let samples = upper.samples(1);
            assert_eq!(samples.len(), 1, "{path}");
            let sample = samples[0];
            assert_eq!((sample.distance, sample.has_fallen_back), (distance, has_fallen_back));
            assert_eq!(text(&[("hard", Some(sample))]), format!("cam=hard,{path}"));
        }
    }

    #[test]
    fn paths_keep_the_order_of_samples_and_are_counted() {
        let upper = upper("box=easy;box=hard*2");
        let above = upper.samples(3);
        let samples = [
            ("easy", None),
            ("easy", None),
            ("hard", Some(above[0])),
            ("hard", Some(above[1])),
            ("hard", Some(above[2])),
        ];
        assert_eq!(text(&samples), "cam=easy*2;cam=hard,box=easy;cam=hard,box=hard*2");
        let many: Vec<_> = samples.iter().copied().cycle().take(1_000).collect();
        assert_eq!(text(&many), "cam=easy*400;cam=hard,box=easy*200;cam=hard,box=hard*400");
    }

    #[test]
    fn answer_about_another_number_of_samples_counts_as_a_whole() {
        let whole = upper("box=fallback;box=hard,hub=easy");
        let samples = whole.samples(1);
        assert_eq!((samples[0].distance, samples[0].has_fallen_back), (1, false));
        assert_eq!(
            upper("box=fallback*4").samples(2),
            vec![upper("box=fallback").samples(1)[0]; 2]
        );
        let none = Upper::default();
        assert_eq!(none.samples(2), [UpperSample::default(); 2]);
        assert_eq!(text(&[("hard", Some(none.samples(1)[0]))]), "cam=hard");
    }

    #[test]
    fn path_in_another_form_is_not_used() {
        let long = format!("box={}", "e".repeat(MAX_BYTES));
        for bad in ["", "box", "box=", "=easy", "box=easy*0", "box=easy*x", "b x=easy", ";", &long]
        {
            assert_eq!(upper(bad), Upper::default(), "{bad:?}");
        }
        let names = "n".repeat(253);
        let samples = (0..64).map(|n| if n % 2 == 0 { ("easy", None) } else { ("hard", None) });
        assert_eq!(header(&names, samples), None, "too long");
    }

    #[test]
    fn away_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert(UPPER, AWAY);
        assert!(Upper::from_headers(&headers).is_away && !upper("box=easy").is_away);
    }

    proptest! {
        /// Every sample is answered by exactly one tier, however the rows are mixed.
        #[test]
        fn each_sample_is_in_exactly_one_group(
            decisions in prop::collection::vec(prop::sample::select(vec!["easy", "hard", "fallback"]), 1..600),
            above in prop::collection::vec(prop::sample::select(vec!["easy", "hard", "fallback"]), 600),
        ) {
            let hard = decisions.iter().filter(|one| **one == "hard").count();
            let of_box = header("box", above.iter().take(hard).map(|one| (*one, None)));
            let mut headers = HeaderMap::new();
            headers.extend(of_box.map(|path| (PATH, path)));
            let upper = Upper::from_headers(&headers);
            let mut sent = upper.samples(hard).into_iter();
            let samples = decisions.iter().map(|one| (*one, if *one == "hard" { sent.next() } else { None }));
            let text = header("cam", samples).unwrap();
            let groups = parse(text.to_str().unwrap()).unwrap();
            let total: usize = groups.iter().map(|(_, times)| times).sum();
            prop_assert_eq!(total, decisions.len());
            let answered = |distance: usize| -> usize {
                groups.iter().filter(|(one, _)| one.distance == distance).map(|(_, times)| times).sum()
            };
            // The path has cam itself: it is one tier further.
            prop_assert_eq!(answered(0), decisions.len() - hard);
            let above_box = above.iter().take(hard).filter(|one| **one == "hard").count();
            prop_assert_eq!((answered(1), answered(2)), (hard - above_box, above_box));
        }
    }
}
