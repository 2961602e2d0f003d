//! Validates the options of downloads. Pure.

use neptune_agent_core::downloads::{DownloadWindows, parse_rate};
use neptune_store::DownloadProxy;

use super::flags::{given, invalid};
use crate::{Error, cli::DownloadArgs};

/// The options of downloads.
pub struct DownloadLimits {
    /// The rate of all downloads; `None` without a limit.
    pub bytes_per_second: Option<u64>,
    /// The hours in which downloads may run that nothing waits for.
    pub windows: DownloadWindows,
    /// The proxy of all downloads; `None` without one.
    pub proxy: Option<DownloadProxy>,
}

/// Validates the options of downloads.
///
/// # Errors
/// [`Error::Config`] with the flag and the remedy.
pub fn download_limits(args: &DownloadArgs) -> Result<DownloadLimits, Error> {
    let rate = given(args.download_rate.as_ref()).map(|text| {
        let remedy = "use a number of bytes of at least 64KiB, such as 2MiB, or omit it";
        parse_rate(text).map_err(|error| invalid("--download-rate", error, remedy))
    });
    let bypassed = args.no_proxy.as_deref().unwrap_or_default();
    let is_bypassed = bypassed.split(',').any(|entry| entry.trim() == "*");
    let proxy = given(args.download_proxy.as_ref()).filter(|_| !is_bypassed).map(|url| {
        let remedy = "use http://HOST:PORT, or --no-proxy '*' for no proxy; without the option HTTPS_PROXY is used";
        DownloadProxy::new(url, bypassed).map_err(|error| invalid("--download-proxy", error, remedy))
    });
    let windows = given(args.download_window.as_ref()).map(|text| {
        let remedy = "use hours of the day such as 01:00-05:00 or 22:00-05:00,12:00-13:00";
        text.parse::<DownloadWindows>().map_err(|error| invalid("--download-window", error, remedy))
    });
    Ok(DownloadLimits {
        bytes_per_second: rate.transpose()?,
        windows: windows.transpose()?.unwrap_or_default(),
        proxy: proxy.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn args(proxy: Option<&str>, bypassed: Option<&str>) -> DownloadArgs {
        DownloadArgs {
            download_rate: None,
            download_window: None,
            download_proxy: proxy.map(str::to_owned),
            no_proxy: bypassed.map(str::to_owned),
            hf_token_file: None,
        }
    }

    fn proxy(args: DownloadArgs, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let mut variables = variables.iter().filter(|(known, _)| *known == name);
            variables.next().map(|(_, value)| (*value).to_owned())
        };
        let limits = download_limits(&args.or_environment(variable)).unwrap();
        limits.proxy.map(|proxy| proxy.shown())
    }

    #[test]
    fn proxy_is_that_of_the_option_or_of_the_environment() {
        let environment = [("HTTPS_PROXY", "http://ann:secret@env:1"), ("NO_PROXY", "local")];
        for (option, bypassed, variables, expected) in [
            (None, None, &[][..], None),
            (None, None, &environment, Some("http://env:1/")),
            (Some("http://own:2"), None, &environment, Some("http://own:2/")),
            (Some(""), None, &environment, Some("http://env:1/")),
            (None, Some("*"), &environment, None),
            (None, None, &[("https_proxy", "lower:3")], Some("http://lower:3/")),
            (
                None,
                None,
                &[("HTTPS_PROXY", ""), ("https_proxy", "lower:3")],
                Some("http://lower:3/"),
            ),
            (None, None, &[("HTTP_PROXY", "http://other:4")], None),
            (None, None, &[("HTTPS_PROXY", "socks5://env:1"), ("no_proxy", "a, *")], None),
        ] {
            let shown = proxy(args(option, bypassed), variables);
            assert_eq!(shown.as_deref(), expected, "{option:?} {bypassed:?} {variables:?}");
        }
    }

    #[test]
    fn refused_proxy_is_named_by_its_flag_without_the_password() {
        let error = download_limits(&args(Some("https://ann:secret@proxy"), None));
        let error = error.err().unwrap().to_string();
        assert!(error.starts_with("--download-proxy") && !error.contains("secret"), "{error}");
    }
}
