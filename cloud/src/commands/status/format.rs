//! How values are written on a page. Pure.

use k8s_openapi::jiff::Timestamp;

/// The steps of a sparkline.
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Formats a number; "-" if it is absent.
pub fn number(number: Option<i64>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

/// Returns the text, or "-" if it is absent or empty.
pub fn or_none(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

/// The first digits of a digest.
pub fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// The ratios as bars, from 0 to the highest.
pub fn sparkline(history: &[String]) -> String {
    let ratios: Vec<f64> = history.iter().filter_map(|ratio| ratio.parse().ok()).collect();
    let highest = ratios.iter().copied().fold(0.0, f64::max);
    let bar = |ratio: &f64| {
        let bounds = (1..STEPS.len()).filter(|step| {
            let bound = u32::try_from(*step).map_or(1.0, f64::from) / 8.0;
            highest > 0.0 && ratio / highest > bound
        });
        STEPS[bounds.count()]
    };
    ratios.iter().map(bar).collect()
}

/// Age in the unit that kubectl would use: seconds, minutes, hours or days.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn age_uses_the_unit_that_kubectl_uses() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (seconds, shown) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            let since = Timestamp::from_second(1_000_000 - seconds).unwrap();
            assert_eq!(age(since, now), shown);
        }
    }

    #[test]
    fn sparkline_is_scaled_from_zero_to_the_highest() {
        let line = |ratios: &[&str]| {
            sparkline(&ratios.iter().map(|&ratio| ratio.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(line(&[]), "");
        assert_eq!(line(&["0.000", "0.000"]), "▁▁");
        assert_eq!(line(&["0.000", "0.100", "0.200", "high"]), "▁▄█");
        assert_eq!(line(&["0.200", "0.200"]), "██");
    }
}
